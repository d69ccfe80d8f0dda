"""The GPUs of a Kubernetes cluster's nodes, from NVIDIA's DCGM exporter."""
