"""A simulated vLLM: the V1 scheduler in virtual time, a server on top of it, and a traffic generator."""
