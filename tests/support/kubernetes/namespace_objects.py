"""The objects of a namespace, and the waits of tests for them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.support.kubernetes.api import Api, Json

_WITHIN_S = 60.0


class AccessibleCluster(Protocol):
    """A cluster of the tests' own, or a borrowed one."""

    @property
    def url(self) -> str: ...

    @property
    def ca(self) -> Path: ...

    def kubeconfig(self, name: str = "admin", token: str = "", namespace: str = "default") -> Path: ...


class NamespaceObjects:
    """`async with` makes the namespace and removes it at the end.

    `policy`: the version of the group policy: v1 from Kubernetes 1.21 on, v1beta1 until 1.24.

    `autoscaling`: v2 from Kubernetes 1.23 on, v2beta2 until 1.25.
    """

    cluster: AccessibleCluster
    api: Api
    name: str
    policy: str
    autoscaling: str

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(self.api)
            undo.push_async_callback(self.remove)
            await self.begin()
            self._undo = undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._undo.aclose()

    async def begin(self) -> None:
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": self.name}})
        self.policy = (await self.api.get("/apis/policy"))["preferredVersion"]["groupVersion"]
        served = {version["version"] for version in (await self.api.get("/apis/autoscaling"))["versions"]}
        self.autoscaling = "autoscaling/v2" if "v2" in served else "autoscaling/v2beta2"

    async def remove(self) -> None:
        await self.api.delete(f"/api/v1/namespaces/{self.name}")

    # Objects.

    def path(self, kind: str, name: str = "") -> str:
        """`kind`: the plural, such as "deployments"."""
        group = {
            "deployments": "apis/apps/v1",
            "replicasets": "apis/apps/v1",
            "statefulsets": "apis/apps/v1",
            "poddisruptionbudgets": f"apis/{self.policy}",
            "horizontalpodautoscalers": f"apis/{self.autoscaling}",
            "networkpolicies": "apis/networking.k8s.io/v1",
            "leases": "apis/coordination.k8s.io/v1",
            "roles": "apis/rbac.authorization.k8s.io/v1",
            "rolebindings": "apis/rbac.authorization.k8s.io/v1",
        }.get(kind, "api/v1")
        return f"/{group}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    async def create(self, kind: str, body: Json) -> Json:
        return await self.api.create(self.path(kind), body)

    async def run(self, workload: Json) -> Json:
        """Create a Deployment or a StatefulSet; wait until it is available."""
        kind = f"{workload['kind'].lower()}s"
        await self.create(kind, workload)
        return await self.available(workload["metadata"]["name"], kind)

    async def get(self, kind: str, name: str) -> Json:
        return await self.api.get(self.path(kind, name))

    async def list(self, kind: str) -> list[Json]:
        return list((await self.api.get(self.path(kind)))["items"])

    async def until(self, kind: str, name: str, holds: Callable[[Json], object]) -> Json:
        """Wait until the object is as wanted; fail with its last state and the events of the namespace."""

        async def look() -> Json:
            document = await self.get(kind, name)
            return document if holds(document) else {}

        return await self.eventually(look)

    async def eventually(self, look: Callable[[], Awaitable[Json]]) -> Json:
        """Wait until `look` returns something."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                while not (result := await look()):
                    await asyncio.sleep(0.05)
                return result
        except TimeoutError as error:
            raise AssertionError(await self._situation()) from error

    async def pod(self, app: str, holds: Callable[[Json], object]) -> Json:
        """Wait until a pod with the label `app` is as wanted."""

        async def look() -> Json:
            pods = (await self.api.get(self.path("pods"), labelSelector=f"app={app}"))["items"]
            return next((pod for pod in pods if holds(pod)), {})

        return await self.eventually(look)

    async def event(self, reason: str, message: str = "") -> Json:
        """Wait for an event with this reason, and this text in its message."""

        async def look() -> Json:
            events = (event for event in await self.list("events") if event["reason"] == reason)
            return next((event for event in events if message in event["message"]), {})

        return await self.eventually(look)

    async def gone(self, kind: str, name: str) -> None:
        """Wait until there is no such object."""

        async def look() -> Json:
            names = {item["metadata"]["name"] for item in await self.list(kind)}
            return {} if name in names else {"gone": name}

        await self.eventually(look)

    async def log(self, pod: str, **query: str) -> str:
        """`query`: of the API, such as `tailLines` or `previous`."""
        return str(await self.api.call("GET", self.path("pods", f"{pod}/log"), query=query))

    async def available(self, name: str, kind: str = "deployments") -> Json:
        """Wait until all replicas of a workload's newest template are ready, and no other is left."""
        return await self.until(kind, name, _complete)

    async def _situation(self) -> str:
        pods = [f"{pod['metadata']['name']}: {pod['status']}" for pod in await self.list("pods")]
        events = [f"{event['reason']}: {event['message']}" for event in await self.list("events")]
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


def _complete(workload: Json) -> bool:
    """As `kubectl rollout status` decides."""
    status, wanted = workload["status"], workload["spec"]["replicas"]
    seen = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
    counts = {status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")}
    return seen and counts == {wanted}
