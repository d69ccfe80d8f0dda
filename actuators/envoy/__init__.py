"""The traffic port: one Envoy for each target, configured by files."""
