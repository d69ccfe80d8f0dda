"""What each flag of `vllm serve` means, one module for each subject."""
