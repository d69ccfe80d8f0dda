"""What several notifiers need."""
