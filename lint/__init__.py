"""Advice on a vLLM command line without a server: rules, their precedence, and the resulting advice."""
