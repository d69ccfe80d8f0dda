"""The cluster in memory behaves like a real one: the same tests run in tests/integration/kubernetes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import httpx2
import pytest

from tests.support.kubernetes.conformance.objects import ObjectConformance
from tests.support.kubernetes.conformance.watches import WatchConformance
from tests.support.kubernetes.conformance.workloads import WorkloadConformance
from tests.support.kubernetes.memory.cluster import MemoryCluster
from tests.support.kubernetes.memory.pods import RunningPod
from tests.support.kubernetes.memory.transport import client

_NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Ready:
    """Processes that serve a moment after their start."""

    def started(self, pod: RunningPod) -> None:
        asyncio.get_running_loop().call_later(0.1, pod.become_ready)

    def ended(self, pod: RunningPod, *, asked: bool) -> None:
        del pod, asked


@dataclass
class Memory:
    cluster: MemoryCluster
    http: httpx2.AsyncClient
    namespace: str = "test"

    async def evict(self, pod: str) -> None:
        self._pod(pod).fail("Evicted", "The node was low on resource: memory. ")

    async def exit(self, pod: str) -> None:
        self._pod(pod).exit()

    async def forget_history(self) -> None:
        self.cluster.server.store.forget_history()

    def _pod(self, name: str) -> RunningPod:
        return next(pod for pod in self.cluster.pods.values() if pod.name.startswith(name))


@pytest.fixture
async def subject() -> AsyncIterator[Memory]:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    cluster = MemoryCluster(
        now=lambda: _NOON + timedelta(seconds=loop.time() - began_s),
        later=loop.call_later,
        random=Random(1),  # noqa: S311 - not for cryptography
        processes=Ready(),
    )
    cluster.add_node("node-1", gpus=2)
    async with client(cluster.server, loop.call_later) as http:
        yield Memory(cluster, http)


class TestObjects(ObjectConformance):
    pass


class TestWatches(WatchConformance):
    pass


class TestWorkloads(WorkloadConformance):
    pass
