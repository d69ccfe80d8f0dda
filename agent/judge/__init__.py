"""The judge: decides whether green is worse than blue, not worse, or better."""
