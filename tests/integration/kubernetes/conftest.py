"""One cluster for all tests, a namespace for each; no tests where the cluster's programs are missing."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes.borrowed import BorrowedCluster, BorrowedNamespace, borrowed_file
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.programs import to_collect

collect_ignore_glob = to_collect()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a borrowed cluster only the tests run that are marked for it."""
    if borrowed_file():
        here = Path(__file__).parent
        left = [
            one
            for one in items
            if one.path.is_relative_to(here) and not one.get_closest_marker("any_cluster")
        ]
        config.hook.pytest_deselected(items=left)
        items[:] = [one for one in items if one not in left]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster | BorrowedCluster]:
    if file := borrowed_file():
        with BorrowedCluster(file) as borrowed:
            yield borrowed
    else:
        with Cluster() as own:
            yield own


@pytest.fixture(autouse=True)
def _no_dns_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the engines in the process of a test; a daemon waits as long as clients keep addresses."""
    monkeypatch.setattr("flettner.actuators.kubernetes.scale._DNS_S", 0.2)


@pytest.fixture
async def here(cluster: Cluster | BorrowedCluster) -> AsyncIterator[Namespace | BorrowedNamespace]:
    """A namespace; in a cluster of the tests' own with a node of two GPUs."""
    if isinstance(cluster, BorrowedCluster):
        async with BorrowedNamespace(cluster) as borrowed:
            yield borrowed
    else:
        async with Namespace(cluster, gpus=2) as own:
            yield own
