"""Complete sites with real vLLM on the CPU."""
