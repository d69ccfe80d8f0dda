"""Runs inside vLLM, not in the daemon: a distribution of its own, without dependencies."""
