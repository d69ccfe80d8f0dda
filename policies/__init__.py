"""The policies: one file each, pure. A policy turns a reading of a server into proposals."""
