"""What an engine asks of a vLLM server itself: health, warm-up, answers; and what the engines share."""
