"""A real API server with its controllers passes the tests of the cluster in memory, tests/unit/kubernetes."""

import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2
import pytest

from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.conformance.objects import ObjectConformance
from tests.support.kubernetes.conformance.watches import WatchConformance
from tests.support.kubernetes.conformance.workloads import WorkloadConformance
from tests.support.kubernetes.namespace import Namespace

pytestmark = pytest.mark.timeout(180)


@dataclass
class Real:
    here: Namespace
    http: httpx2.AsyncClient

    @property
    def namespace(self) -> str:
        return self.here.name

    async def evict(self, pod: str) -> None:
        await self.here.node.evict(self.here.node.pod(pod))

    async def exit(self, pod: str) -> None:
        self.here.node.pod(pod).container().signal(signal.SIGKILL)

    async def forget_history(self) -> None:
        """The API server begins its cache of changes anew."""
        self.here.cluster.stop_api()
        self.here.cluster.start_api()
        self.here.cluster.wait()


@pytest.fixture
async def subject(cluster: Cluster, here: Namespace) -> AsyncIterator[Real]:
    trust = ssl.create_default_context(cafile=str(cluster.ca))
    headers = {"Authorization": f"Bearer {cluster._token}"}
    async with httpx2.AsyncClient(base_url=cluster.url, verify=trust, headers=headers, timeout=30) as http:
        yield Real(here, http)


class TestObjects(ObjectConformance):
    pass


class TestWatches(WatchConformance):
    pass


class TestWorkloads(WorkloadConformance):
    pass
