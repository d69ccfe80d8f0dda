"""Which events become notifications, and their delivery."""
