"""The judge: whether green is worse than blue, better, or neither can be said yet."""
