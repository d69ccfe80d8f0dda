"""The Kubernetes engine's documents, without an API server."""
