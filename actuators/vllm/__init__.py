"""The requests of an engine to a vLLM server: health, warm-up, answers; and code that the engines share."""
