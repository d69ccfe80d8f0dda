"""Time series of a Prometheus server."""
