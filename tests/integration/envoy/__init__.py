"""A real Envoy."""
