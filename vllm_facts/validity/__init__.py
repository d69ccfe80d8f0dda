"""The checks of vLLM at start: what it refuses, by vLLM's own source."""
