"""One cluster for all tests, a namespace for each; no tests where the cluster's programs are missing."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.programs import to_collect

collect_ignore_glob = to_collect()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
async def here(cluster: Cluster) -> AsyncIterator[Namespace]:
    """A namespace with a node of two GPUs."""
    async with Namespace(cluster, gpus=2) as here:
        yield here
