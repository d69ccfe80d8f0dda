"""How fast and how exact the performance model is, next to the simulated vLLM."""
