"""The client of the Kubernetes API server that engines, proxies and the daemon's start share."""
