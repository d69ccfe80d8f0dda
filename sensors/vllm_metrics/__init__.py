"""The /metrics page of each vLLM server."""
