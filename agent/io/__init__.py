"""Bounded reads from other programs, and files that are replaced as a whole."""
