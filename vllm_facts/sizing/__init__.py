"""Memory and parallelism arithmetic: GPUs, KV cache, layouts."""
