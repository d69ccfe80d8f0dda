"""The cluster of the Kubernetes adapters, once for all tests."""

from collections.abc import Iterator

import pytest

from tests.integration.kubernetes.conftest import own_cluster
from tests.support.kubernetes.background import in_background
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.shared_proxy import SharedEnvoyPod

__all__ = ["own_cluster"]


@pytest.fixture(scope="session")
def envoy_pod(own_cluster: Cluster) -> Iterator[SharedEnvoyPod]:
    with in_background(lambda: SharedEnvoyPod.running(own_cluster)) as pod:
        yield pod
