"""What a daemon costs: with many targets, and over time."""
