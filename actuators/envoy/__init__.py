"""Envoy as the traffic port: one Envoy for all targets, configured by files."""
