"""What an expert would change: one file a policy, each pure."""
