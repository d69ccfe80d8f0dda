"""Small mechanisms that every package may use; they need the standard library only."""
