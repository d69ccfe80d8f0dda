"""Envoy's records of requests: what its configuration writes, and a sensor or a pod's program reads."""
