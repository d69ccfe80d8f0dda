"""What people start: they may import everything, and nothing imports them."""
