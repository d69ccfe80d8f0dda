"""Advice about one running server without a daemon, and the parts that `flettner lint` shares with it."""
