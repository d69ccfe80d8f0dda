"""Envoy in the pods of a Deployment of its own as the traffic port, configured by ConfigMaps."""
