"""Command lines as users write them: `vllm serve`, `docker run`, shell syntax."""
