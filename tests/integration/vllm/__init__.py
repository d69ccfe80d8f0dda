"""Real vLLM on the CPU."""
