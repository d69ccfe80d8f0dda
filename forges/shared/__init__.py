"""Code shared by several forges."""
