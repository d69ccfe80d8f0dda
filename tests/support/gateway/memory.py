"""HTTPRoutes of an API server in memory, in virtual time; the network to it may fail."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from tests.support.fast_time import loop_now
from tests.support.kubernetes.memory.server import ApiServer, RefusedError, Request
from tests.support.kubernetes.memory.transport import MemoryTransport, refusal

NAMESPACE = "chat"
_KUBECONFIG = Path(__file__).parents[2] / "simulation" / "kubernetes" / "kubeconfig.json"

Fault = Callable[[Request], Awaitable[httpx2.Response | None]]


def _call_later(delay_s: float, call: Callable[[], object]) -> object:
    return asyncio.get_running_loop().call_later(delay_s, call)


@dataclass(kw_only=True)
class MemoryRoutes:
    """`faults`: asked before each request; one that returns an answer or raises takes the server's place."""

    server: ApiServer = field(default_factory=lambda: ApiServer(now=loop_now, random=Random(1)))  # noqa: S311
    faults: list[Fault] = field(default_factory=list)
    calls: list[Request] = field(default_factory=list)

    def transport(self, *_: object, **__: object) -> MemoryTransport:
        """As httpx2 makes one for a client."""
        return MemoryTransport(server=self.server, later=_call_later, deliver=self._deliver)

    async def _deliver(self, request: Request, answer: Callable[[], httpx2.Response]) -> httpx2.Response:
        await asyncio.sleep(0.01)
        self.calls.append(request)
        for fault in [*self.faults]:
            if (response := await fault(request)) is not None:
                return response
        return answer()

    def client(self) -> KubernetesClient:
        return KubernetesClient(kubeconfig=str(_KUBECONFIG), namespace=NAMESPACE)

    def put(self, name: str, *rules: Json, annotations: dict[str, str] | None = None) -> None:
        """Create an HTTPRoute, or replace it, as another client does."""
        key = ("httproutes", NAMESPACE, name)
        document = self.server.store.get(*key) or {"metadata": {"name": name, "namespace": NAMESPACE}}
        metadata = {**document["metadata"], "annotations": annotations or {}}
        generation = metadata.get("generation", 0) + (document.get("spec") != {"rules": list(rules)})
        self.server.store.put(
            key,
            {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": {**metadata, "generation": generation, "uid": name},
                "spec": {"rules": list(rules)},
            },
        )

    def route(self, name: str) -> Json:
        document = self.server.store.get("httproutes", NAMESPACE, name)
        assert document is not None
        return deepcopy(document)

    def backends(self, name: str, rule: int = 0) -> dict[str, int]:
        refs = self.route(name)["spec"]["rules"][rule]["backendRefs"]
        return {ref["name"]: ref["weight"] for ref in refs}

    def writes(self) -> list[Request]:
        """The changes of HTTPRoutes that were asked for."""
        return [call for call in self.calls if call.method == "PATCH" and "httproutes" in call.path]


async def away(request: Request) -> httpx2.Response | None:
    """A fault: the API server cannot be reached."""
    raise httpx2.ConnectError(f"{request.path}: all connection attempts failed")


def forbids(method: str, what: str) -> Fault:
    """A fault: the caller lacks a right."""

    async def refuse(request: Request) -> httpx2.Response | None:
        if request.method != method or what not in request.path:
            return None
        return refusal(RefusedError(403, f"cannot {method} {what}", "Forbidden"))

    return refuse


@contextmanager
def installed(routes: MemoryRoutes) -> Iterator[MemoryRoutes]:
    """Let every HTTP client of the product use this server."""
    owner: Any = httpx2._client
    before = owner.AsyncHTTPTransport
    owner.AsyncHTTPTransport = routes.transport
    try:
        yield routes
    finally:
        owner.AsyncHTTPTransport = before
