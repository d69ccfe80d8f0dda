"""The engine that runs vLLM in containers of the local Docker Engine."""
