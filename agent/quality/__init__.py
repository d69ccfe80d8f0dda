"""Golden prompts: whether the answers of green are as good as those of blue."""
