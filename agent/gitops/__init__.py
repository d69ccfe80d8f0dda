"""Suggestions as pull requests, for targets whose command lives in a git repository."""
