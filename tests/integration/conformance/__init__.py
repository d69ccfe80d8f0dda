"""Every engine and every proxy against its port."""
