"""A namespace for one test, with a node of its own, a scheduler and the cluster's DNS."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kubernetes.api import ApiError, Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.dns import Dns
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.scheduler import Scheduler

_LABEL = "trimtab.test/namespace"
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_WITHIN_S = 60.0


class Namespace:
    """`async with Namespace(cluster, gpus=2) as here`. `node` has the GPUs; `add_node` adds another."""

    def __init__(self, cluster: Cluster, *, gpus: int = 0) -> None:
        self.cluster, self._gpus = cluster, gpus
        self.name = f"test-{secrets.token_hex(4)}"
        self.api = cluster.api()
        self.dns = Dns(self.api, cluster.network.address)
        self.policy = ""  # the version of the group policy: v1 from Kubernetes 1.21 on, v1beta1 until 1.24
        self.nodes: list[Node] = []
        self._netns: list[str] = []
        self._scheduler: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(self.api)
            undo.push_async_callback(self._remove)
            await self.api.create("/api/v1/namespaces", {"metadata": {"name": self.name}})
            self.policy = (await self.api.get("/apis/policy"))["preferredVersion"]["groupVersion"]
            await self._add_control_plane()
            await self.add_node(self._gpus)
            await self.dns.start()
            self._scheduler = asyncio.create_task(Scheduler(self.api, self.name, _LABEL).run())
            self._undo = undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._undo.aclose()

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
            labels={_LABEL: self.name},
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

    # Objects.

    def path(self, kind: str, name: str = "") -> str:
        """`kind`: the plural, such as "deployments"."""
        group = {
            "deployments": "apis/apps/v1",
            "replicasets": "apis/apps/v1",
            "statefulsets": "apis/apps/v1",
            "poddisruptionbudgets": f"apis/{self.policy}",
            "networkpolicies": "apis/networking.k8s.io/v1",
            "leases": "apis/coordination.k8s.io/v1",
            "roles": "apis/rbac.authorization.k8s.io/v1",
            "rolebindings": "apis/rbac.authorization.k8s.io/v1",
        }.get(kind, "api/v1")
        return f"/{group}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    async def create(self, kind: str, body: Json) -> Json:
        return await self.api.create(self.path(kind), body)

    async def get(self, kind: str, name: str) -> Json:
        return await self.api.get(self.path(kind, name))

    async def list(self, kind: str) -> list[Json]:
        return list((await self.api.get(self.path(kind)))["items"])

    async def until(self, kind: str, name: str, holds: Callable[[Json], object]) -> Json:
        """Wait until the object is as wanted; fail with its last state and the events of the namespace."""

        async def look() -> Json:
            found = await self.get(kind, name)
            return found if holds(found) else {}

        return await self.eventually(look)

    async def eventually(self, look: Callable[[], Awaitable[Json]]) -> Json:
        """Wait until `look` returns something."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                while not (found := await look()):
                    await asyncio.sleep(0.05)
                return found
        except TimeoutError as error:
            raise AssertionError(await self._situation()) from error

    async def pod(self, app: str, holds: Callable[[Json], object]) -> Json:
        """Wait until a pod with the label `app` is as wanted."""

        async def look() -> Json:
            found = (await self.api.get(self.path("pods"), labelSelector=f"app={app}"))["items"]
            return next((one for one in found if holds(one)), {})

        return await self.eventually(look)

    async def event(self, reason: str) -> Json:
        """Wait for an event with this reason."""

        async def look() -> Json:
            return next((one for one in await self.list("events") if one["reason"] == reason), {})

        return await self.eventually(look)

    async def gone(self, kind: str, name: str) -> None:
        """Wait until there is no such object."""

        async def look() -> Json:
            names = {one["metadata"]["name"] for one in await self.list(kind)}
            return {} if name in names else {"gone": name}

        await self.eventually(look)

    async def log(self, pod: str, **query: str) -> str:
        """`query`: of the API, such as `tailLines` or `previous`."""
        return str(await self.api.call("GET", self.path("pods", f"{pod}/log"), query=query))

    async def available(self, name: str, kind: str = "deployments") -> Json:
        """Wait until all replicas of a workload's newest template are ready, and no other is left."""
        return await self.until(kind, name, _complete)

    async def _situation(self) -> str:
        pods = [f"{one['metadata']['name']}: {one['status']}" for one in await self.list("pods")]
        events = [f"{one['reason']}: {one['message']}" for one in await self.list("events")]
        return "\n".join(["not within the time; pods:", *pods, "events:", *events])

    # Clients.

    async def user(self, name: str, *rules: Json) -> Path:
        """The kubeconfig of a new ServiceAccount that has the rights of `rules` in this namespace."""
        await self.create("serviceaccounts", {"metadata": {"name": name}})
        await self.create("roles", {"metadata": {"name": name}, "rules": list(rules)})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.name}
        await self.create(
            "rolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        )
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        made = await self.api.create(self.path("serviceaccounts", f"{name}/token"), asked)
        return self.cluster.kubeconfig(name, made["status"]["token"], self.name)

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

    async def _remove(self) -> None:
        """The namespace first: nothing can be made in it from then on."""
        await self.api.delete(f"/api/v1/namespaces/{self.name}")
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


def _complete(workload: Json) -> bool:
    """As `kubectl rollout status` decides."""
    status, wanted = workload["status"], workload["spec"]["replicas"]
    seen = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
    counts = {status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")}
    return seen and counts == {wanted}
