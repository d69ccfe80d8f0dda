"""What trimtab acts through: one file an outside thing."""
