"""Clients of systems that several plugins use."""
