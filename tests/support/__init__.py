"""Fakes and rigs that several folders share."""
