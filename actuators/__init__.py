"""What flettner acts through: one file an outside thing."""
