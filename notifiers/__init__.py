"""Whom trimtab tells: one file a kind of receiver."""
