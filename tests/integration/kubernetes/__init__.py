"""A real Kubernetes API server, with stand-ins for nodes and DNS."""
