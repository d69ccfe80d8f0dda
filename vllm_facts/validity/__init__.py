"""The refusals of vLLM at start, by vLLM's own source."""
