"""Real processes, with a stub for vLLM."""
