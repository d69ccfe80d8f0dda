"""The engine that runs vLLM as processes of this host."""
