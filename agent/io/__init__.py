"""Reading from other programs with limits on size and depth."""
