"""A real Prometheus."""
