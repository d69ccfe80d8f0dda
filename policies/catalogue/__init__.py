"""What is known of vLLM's flags, as data: one file a concern."""
