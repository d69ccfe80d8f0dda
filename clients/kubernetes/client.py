"""The calls to the Kubernetes API server, in one namespace.

Objects stay JSON documents: a copy of a pod template keeps every field, also those of newer versions.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lightkube
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import CascadeType, PatchType
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exception

from flettner.agent.retrying import retry
from flettner.clients.kubernetes.connection import Access
from flettner.clients.kubernetes.documents import Json, Kind, has_labels, with_kind
from flettner.clients.kubernetes.errors import AwayError, ConflictError, MissingError
from flettner.clients.kubernetes.mirror import STEADY, Mirror, MirroringConnection, Pace, connection_to

logging.getLogger("httpx2").setLevel(logging.WARNING)  # lightkube's; at INFO it logs every request

_RETRY_S = 2.0  # while the API server is away
_CHANGES = 5  # attempts at one change: each change of an object's status lets a conditional write fail
_PATCH = {"merge": PatchType.MERGE, "json": PatchType.JSON}
_T = TypeVar("_T")
Change = Json | list[Json]


def _resource(group: str, version: str, kind: str) -> Kind:
    return create_namespaced_resource(group, version, kind, kind.lower() + "s")


DEPLOYMENT = _resource("apps", "v1", "Deployment")
STATEFUL_SET = _resource("apps", "v1", "StatefulSet")
SERVICE = _resource("", "v1", "Service")
POD = _resource("", "v1", "Pod")
EVENT = _resource("", "v1", "Event")
CONFIG_MAP = _resource("", "v1", "ConfigMap")
SECRET = _resource("", "v1", "Secret")
LEASE = _resource("coordination.k8s.io", "v1", "Lease")
HORIZONTAL_POD_AUTOSCALER = _resource("autoscaling", "v1", "HorizontalPodAutoscaler")
POD_DISRUPTION_BUDGET = _resource("policy", "v1", "PodDisruptionBudget")
TOKEN_REVIEW = create_global_resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews")
HTTP_ROUTE = _resource("gateway.networking.k8s.io", "v1", "HTTPRoute")
_CACHED = frozenset({DEPLOYMENT, STATEFUL_SET, SERVICE, POD})


def is_configured() -> bool:
    """Return whether this process runs in a pod, or has a kubeconfig where kubectl looks for one."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return in_pod or "KUBECONFIG" in os.environ or Path("~/.kube/config").expanduser().is_file()


async def patiently(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Return the answer, asking again for as long as the API server is away; the caller sets the deadline."""
    asking = AsyncRetrying(
        retry=retry_if_exception_type(AwayError),
        wait=wait_exception(lambda error: max(_RETRY_S, getattr(error, "retry_s", 0.0))),
    )
    return await retry(asking, ask)


class Reader(Protocol):
    """Reads objects: a KubernetesClient by calls, its CachedReader without."""

    async def get(self, resource: Kind, name: str) -> Json | None: ...
    async def find(self, resource: Kind, labels: Mapping[str, str] | None = None) -> list[Json]: ...
    async def own_namespace(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesClient:
    """`kubeconfig`: a file; empty: the pod's service account, else KUBECONFIG, else ~/.kube/config.

    Every call raises ActError if the API server refuses: MissingError for an object that does not exist,
    ConflictError for an object that has changed; AwayError if the server does not answer.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""  # empty: that of the kubeconfig's context or of the pod

    async def get(self, resource: Kind, name: str) -> Json | None:
        """Return the object; None: there is none."""
        try:
            return dict(
                await self._connection.call(
                    f"read {_named(resource, name)}", lambda api: api.get(resource, name)
                )
            )
        except MissingError:
            return None

    async def find(
        self,
        resource: Kind,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Json]:
        async def read(api: lightkube.AsyncClient) -> list[Json]:
            listed = api.list(resource, labels=_selector(labels), fields=_selector(fields))
            return [with_kind(item, resource) async for item in listed]

        return await self._connection.call(f"list the {resource.__name__}s", read)

    async def create(self, resource: Kind, body: Json, *, dry_run: bool = False) -> Json:
        made = resource.from_dict(body)
        what = f"create {_named(resource, body['metadata']['name'])}"
        if dry_run:
            return dict(await self._connection.call(what, lambda api: api.create(made, dry_run=True)))
        return dict(await self._write(resource, what, lambda api: api.create(made)))

    async def patch(self, resource: Kind, name: str, change: Change) -> Json:
        """Change an object: a dict is a merge patch (RFC 7396), a list a JSON patch (RFC 6902).

        A change that sets `metadata.resourceVersion` is refused (ConflictError) if the object has changed
        since it was read.
        """
        kind = _PATCH["json" if isinstance(change, list) else "merge"]
        what = f"change {_named(resource, name)}"
        return dict(
            await self._write(resource, what, lambda api: api.patch(resource, name, change, patch_type=kind))
        )

    async def update(
        self, resource: Kind, name: str, change: Callable[[Json], Awaitable[Change | None]]
    ) -> Json:
        """Read an object and patch it; both again if another client was faster. None: nothing to change.

        Raises MissingError if there is none.
        """
        for tries_left in reversed(range(_CHANGES)):
            current = await self.get(resource, name)
            if current is None:
                raise MissingError(f"{_named(resource, name)} was removed by a third party", external=True)
            wanted = await change(current)
            if wanted is None:
                return current
            try:
                return await self.patch(resource, name, wanted)
            except ConflictError:
                if not tries_left:
                    raise
        raise AssertionError("not reached")

    async def delete(self, resource: Kind, name: str) -> None:
        """Delete the object and what belongs to it; without error if there is none."""
        with suppress(MissingError):
            await self._write(
                resource,
                f"delete {_named(resource, name)}",
                lambda api: api.delete(resource, name, cascade=CascadeType.BACKGROUND),
            )

    async def log(self, pod: str, container: str, lines: int, *, previous: bool = False) -> str:
        """Return the last lines of a container's log. `previous`: of its run before the last restart."""

        async def read(api: lightkube.AsyncClient) -> str:
            url = f"/api/v1/namespaces/{api.namespace}/pods/{pod}/log"
            wanted: dict[str, str | int] = {
                "container": container,
                "tailLines": lines,
                "previous": str(previous).lower(),
            }
            answer = await api._client._client.get(url, params=wanted)  # noqa: SLF001 - log() lacks `previous`
            if answer.is_error:
                raise ApiError(request=answer.request, response=answer)
            return str(answer.text)

        return await self._connection.call(f"read the log of the pod {pod}", read)

    def mirror(self, resource: Kind, labels: Mapping[str, str], pace: Pace) -> Mirror:
        """Return what a list and a watch of these objects tell, kept up to date from now on."""
        return self._connection.mirror(resource, labels, pace)

    async def own_namespace(self) -> str:
        """Return the namespace that the calls are about."""

        async def read(api: lightkube.AsyncClient) -> str:
            return str(api.namespace)

        return await self._connection.call("read the kubeconfig", read)

    @property
    def cached(self) -> "CachedReader":
        """Return a reader without calls. Read an object again by a call before a write that depends on it."""
        return CachedReader(self)

    @property
    def _connection(self) -> MirroringConnection:
        return connection_to(Access(self.kubeconfig, self.context, self.namespace))

    async def _write(
        self, resource: Kind, what: str, ask: Callable[[lightkube.AsyncClient], Awaitable[_T]]
    ) -> _T:
        try:
            return await self._connection.call(what, ask)
        finally:  # also of a call that was cut off
            self._connection.has_written(resource)


@dataclass(frozen=True, slots=True)
class CachedReader:
    """Reads Deployments, StatefulSets, Services and pods from a watch, and other kinds by a call.

    A read that follows a write of this process includes it. Raises ActError while the watch is broken. The
    documents must not be changed.
    """

    client: KubernetesClient

    async def get(self, resource: Kind, name: str) -> Json | None:
        """Return the object; None: there is none."""
        if resource not in _CACHED:
            return await self.client.get(resource, name)
        return (await self._mirror(resource).read()).get(name)

    async def find(self, resource: Kind, labels: Mapping[str, str] | None = None) -> list[Json]:
        if resource not in _CACHED:
            return await self.client.find(resource, labels)
        documents = await self._mirror(resource).read()
        return [document for document in documents.values() if has_labels(document, labels or {})]

    def changes(
        self, resource: Kind, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> AsyncIterator[None]:
        """Yield at each change of these objects, beginning at once."""
        return self._mirror(resource).changes(labels or {}, name)

    async def own_namespace(self) -> str:
        return await self.client.own_namespace()

    def _mirror(self, resource: Kind) -> Mirror:
        return self.client.mirror(resource, {}, STEADY)


def _selector(labels: Mapping[str, str] | None) -> dict[str, Any] | None:
    return dict(labels) if labels else None


def _named(resource: Kind, name: str) -> str:
    return f"the {resource.__name__} {name}"
