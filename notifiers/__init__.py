"""Receivers of notices, one module a kind."""
