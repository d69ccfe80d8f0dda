"""The core: what flettner knows, how it decides, how it writes it down, how it waits."""
