"""Cost of trimtab's scheduler class: throughput next to vLLM's own scheduler, on real vLLM for the CPU."""
