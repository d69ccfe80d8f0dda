"""A namespace for one test, with a node of its own, a scheduler and the cluster's DNS."""

import asyncio
import secrets
from collections.abc import Sequence

from tests.support.kubernetes.api import ApiError, Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.dns import Dns
from tests.support.kubernetes.namespace_objects import NamespaceObjects
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.scheduler import Scheduler

LABEL = "flettner.test/namespace"
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class Namespace(NamespaceObjects):
    """`async with Namespace(cluster, gpus=2) as here`. `node` has the GPUs; `add_node` adds another."""

    cluster: Cluster

    def __init__(self, cluster: Cluster, *, gpus: int = 0) -> None:
        self.cluster, self._gpus = cluster, gpus
        self.name = f"test-{secrets.token_hex(4)}"
        self.api = cluster.api()
        self.dns = Dns(self.api, cluster.network.address)
        self.nodes: list[Node] = []
        self._netns: list[str] = []
        self._scheduler: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        await super().begin()
        await self._add_control_plane()
        await self.add_node(self._gpus)
        await self.dns.start()
        self._scheduler = asyncio.create_task(Scheduler(self.api, self.name, LABEL).run())

    @property
    def node(self) -> Node:
        return self.nodes[0]

    async def add_node(self, gpus: int = 0) -> Node:
        name = f"{self.name}-node-{len(self.nodes) + 1}"
        node = Node(
            self.api,
            self.cluster.network,
            self.cluster.folder / name,
            name=name,
            labels={LABEL: self.name},
            gpus=gpus,
        )
        self.nodes.append(node)
        await node.start(self.name)
        return node

    async def _add_control_plane(self) -> None:
        """A node without room for pods: where all nodes of a cluster are lost, Kubernetes evicts nothing."""
        taint = {"key": _CONTROL_PLANE, "effect": "NoSchedule"}
        body: Json = {"metadata": {"name": "control-plane"}, "spec": {"taints": [taint]}}
        try:
            await self.api.create("/api/v1/nodes", body)
        except ApiError as error:
            if error.status != 409:
                raise
            return
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"conditions": [ready], "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}}
        await self.api.patch("/api/v1/nodes/control-plane/status", {"status": status})

    # The pods' network.

    def inside(self, *command: str) -> Sequence[str]:
        """The command line that runs a program in the pods' network, with the cluster's DNS."""
        if not self._netns:
            search = f"{self.name}.svc.cluster.local svc.cluster.local cluster.local"
            self._netns.append(self.cluster.network.join(search)[0])
        return ("ip", "netns", "exec", self._netns[0], *command)

    async def output(self, *command: str) -> str:
        """What a program says that runs `inside`."""
        process = await asyncio.create_subprocess_exec(*self.inside(*command), stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert process.returncode == 0, command
        return said.decode().strip()

    # The end.

    async def remove(self) -> None:
        """The namespace first: nothing can be made in it from then on."""
        await super().remove()
        if self._scheduler is not None:
            self._scheduler.cancel()
            await asyncio.wait({self._scheduler})
        await self.dns.stop()
        for node in self.nodes:
            await node.stop()
            await self.api.delete(f"/api/v1/nodes/{node.name}")
        await self.api.delete(self.path("pods"), {"gracePeriodSeconds": 0})
        for name in self._netns:
            self.cluster.network.leave(name)
