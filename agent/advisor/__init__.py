"""Advice about one running server without the daemon, and what `trimtab lint` shares with it."""
