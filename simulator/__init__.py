"""A vLLM that isn't: the V1 scheduler in virtual time, a server over it, and traffic for it."""
