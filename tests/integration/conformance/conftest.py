"""The cluster of the Kubernetes engine, once for all tests."""

from tests.integration.kubernetes.conftest import cluster

__all__ = ["cluster"]
