"""One cluster for all tests, a namespace for each; skipped where the cluster's programs are missing."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes.borrowed import BorrowedCluster, BorrowedNamespace, borrowed_file
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import Namespace


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what is not `smoke`, and on a borrowed cluster deselect what is not marked for it.

    All tests of this folder together take a quarter of an hour of CPU.
    """
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        if not item.get_closest_marker("smoke"):
            item.add_marker("slow")
    if borrowed_file():
        left = [item for item in here if not item.get_closest_marker("any_cluster")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[Cluster]:
    if file := borrowed_file():
        pytest.skip(f"needs stand-ins of nodes, which the cluster of {file} does not have")
    try:
        own = Cluster()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with own:
        yield own


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | BorrowedCluster]:
    if file := borrowed_file():
        with BorrowedCluster(file) as borrowed:
            yield borrowed
    else:
        yield request.getfixturevalue("own_cluster")


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
