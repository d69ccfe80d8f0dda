"""Command lines as people write them: `vllm serve`, `docker run`, shell scripts, config files."""
