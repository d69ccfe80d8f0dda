"""Advice about one running server without a daemon, and the parts that `trimtab lint` shares with it."""
