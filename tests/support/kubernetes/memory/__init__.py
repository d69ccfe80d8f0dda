"""A Kubernetes cluster in memory, on the clock of the event loop, for tests in virtual time.

It answers the HTTP requests that flettner makes; `tests/support/kubernetes/conformance` compares it with a
real cluster. It has no ReplicaSets, rights or quotas, and its pods are no processes.
"""
