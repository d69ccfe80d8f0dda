"""Code shared by several sensors."""
