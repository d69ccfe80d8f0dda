"""Real vLLM on the CPU: settings measured, and predicted from traffic at the default."""
