"""Advice on a vLLM command line without a server: the rules, their order, and the advice made of both."""
