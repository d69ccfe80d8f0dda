"""Histories of a target on Kubernetes: the real engine over a cluster in memory, in virtual time.

Real, besides what the other histories have: the engine, and the client down to its HTTP requests. Simulated:
the API server with its controllers, nodes, vLLM in the pods, DNS, and who else writes to the cluster.
"""
