"""Code shared by several notifiers."""
