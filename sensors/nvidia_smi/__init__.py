"""The GPUs of this host, from nvidia-smi."""
