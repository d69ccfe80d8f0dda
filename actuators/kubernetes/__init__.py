"""The engine that runs vLLM as Deployments of a Kubernetes namespace."""
