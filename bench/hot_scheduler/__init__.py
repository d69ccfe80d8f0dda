"""Cost of flettner's scheduler class: throughput next to vLLM's own scheduler, on real vLLM for the CPU."""
