"""vLLM's /metrics page: the text format, and the totals of the known metrics."""
