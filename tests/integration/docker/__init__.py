"""A real Docker Engine."""
