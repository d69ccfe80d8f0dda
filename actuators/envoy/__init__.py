"""Envoy as the traffic port: one Envoy for each target, configured by files."""
