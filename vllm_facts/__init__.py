"""What is known of vLLM: flags, defaults, models, memory, command lines, metric names. Pure."""
