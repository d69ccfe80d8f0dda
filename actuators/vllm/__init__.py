"""What an engine asks of a vLLM server itself: health, warm-up, answers, a dry run of its arguments."""
