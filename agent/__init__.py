"""The core: what trimtab knows, how it decides, how it writes it down, how it waits."""
