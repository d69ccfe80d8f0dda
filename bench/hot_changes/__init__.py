"""Changes of a running server, on real vLLM for the CPU behind the daemon and Envoy."""
