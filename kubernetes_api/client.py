"""The calls to the Kubernetes API server, in one namespace.

Objects stay JSON documents: a copy of a pod template keeps every field, also those of newer versions.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import lightkube
import msgspec
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.types import CascadeType, PatchType

from agent.domain.errors import ActError

Json = dict[str, Any]
Kind = Any  # a class that lightkube makes at run time

logging.getLogger("httpx2").setLevel(logging.WARNING)  # lightkube's; at INFO it logs every request

MANAGER = "trimtab"
"""The field manager of every write: `kubectl get --show-managed-fields` names it."""

_TIMEOUT_S = 15.0
_RETRY_S = 2.0  # while the API server is away
_CHANGES = 5  # attempts at one change: each change of an object's status lets a conditional write fail
_PATCH = {"merge": PatchType.MERGE, "json": PatchType.JSON}
_T = TypeVar("_T")
Change = Json | list[Json]


def _resource(group: str, version: str, kind: str) -> Kind:
    return create_namespaced_resource(group, version, kind, kind.lower() + "s")


DEPLOYMENT = _resource("apps", "v1", "Deployment")
SERVICE = _resource("", "v1", "Service")
POD = _resource("", "v1", "Pod")
EVENT = _resource("", "v1", "Event")
CONFIG_MAP = _resource("", "v1", "ConfigMap")
LEASE = _resource("coordination.k8s.io", "v1", "Lease")


def is_configured() -> bool:
    """Whether this process runs in a pod, or has a kubeconfig where kubectl looks for one."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return in_pod or "KUBECONFIG" in os.environ or Path("~/.kube/config").expanduser().is_file()


class MissingError(ActError):
    """There is no such object."""


class ConflictError(ActError):
    """Another client has changed or created the object meanwhile."""


class AwayError(ActError):
    """The API server does not answer, or is overloaded."""


async def patiently(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Return the answer, asking again for as long as the API server is away; the caller sets the deadline."""
    while True:
        try:
            return await ask()
        except AwayError:
            await asyncio.sleep(_RETRY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesClient:
    """`kubeconfig`: a file; empty: the pod's service account, else KUBECONFIG, else ~/.kube/config.

    Every call raises ActError if the API server refuses: MissingError for an object that does not exist,
    ConflictError for one that has changed; AwayError if it does not answer.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""  # empty: that of the kubeconfig's context or of the pod

    async def get(self, resource: Kind, name: str) -> Json | None:
        """Return the object; None: there is none."""
        try:
            return dict(
                await self._call(f"read {_named(resource, name)}", lambda api: api.get(resource, name))
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
            return [dict(one) async for one in listed]

        return await self._call(f"list the {resource.__name__}s", read)

    async def create(self, resource: Kind, body: Json, *, dry_run: bool = False) -> Json:
        made = resource.from_dict(body)
        what = f"create {_named(resource, body['metadata']['name'])}"
        return dict(await self._call(what, lambda api: api.create(made, dry_run=dry_run)))

    async def patch(self, resource: Kind, name: str, change: Change) -> Json:
        """Change an object: a dict is a merge patch (RFC 7396), a list a JSON patch (RFC 6902).

        A change that sets `metadata.resourceVersion` is refused (ConflictError) if the object has changed
        since it was read.
        """
        kind = _PATCH["json" if isinstance(change, list) else "merge"]
        what = f"change {_named(resource, name)}"
        return dict(await self._call(what, lambda api: api.patch(resource, name, change, patch_type=kind)))

    async def update(
        self, resource: Kind, name: str, change: Callable[[Json], Awaitable[Change | None]]
    ) -> Json:
        """Read an object and patch it; both again if another client was faster. None: nothing to change.

        Raises MissingError if there is none.
        """
        for tries_left in reversed(range(_CHANGES)):
            found = await self.get(resource, name)
            if found is None:
                raise MissingError(f"{_named(resource, name)} was removed by a third party", external=True)
            wanted = await change(found)
            if wanted is None:
                return found
            try:
                return await self.patch(resource, name, wanted)
            except ConflictError:
                if not tries_left:
                    raise
        raise AssertionError("not reached")

    async def delete(self, resource: Kind, name: str) -> None:
        """Delete the object and what belongs to it; without error if there is none."""
        with suppress(MissingError):
            await self._call(
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

        return await self._call(f"read the log of the pod {pod}", read)

    async def watch(
        self, resource: Kind, labels: Mapping[str, str], server_timeout_s: int
    ) -> AsyncGenerator[tuple[str, Json]]:
        """Yield each change of these objects, beginning with those that exist: ADDED, MODIFIED or DELETED.

        It ends with an error only, as when the API server no longer has the changes since the last one (410).
        """
        async with self._connect(f"watch the {resource.__name__}s") as api:
            watched = api.watch(resource, labels=_selector(labels), server_timeout=server_timeout_s)
            async for change, document in watched:
                yield change, dict(document)

    async def own_namespace(self) -> str:
        """Return the namespace that the calls are about."""
        async with self._connect("read the kubeconfig") as api:
            return str(api.namespace)

    async def _call(self, what: str, ask: Callable[[lightkube.AsyncClient], Awaitable[_T]]) -> _T:
        async with self._connect(what) as api, asyncio.timeout(_TIMEOUT_S):
            return await ask(api)

    @asynccontextmanager
    async def _connect(self, what: str) -> AsyncIterator[lightkube.AsyncClient]:
        """A new connection for each call: calls are seconds apart, and a token may change in between.

        Every error becomes an ActError that names the call and what to do.
        """
        try:
            async with lightkube.AsyncClient(
                config=await asyncio.to_thread(self._config),
                namespace=self.namespace or None,
                field_manager=MANAGER,
                timeout=httpx2.Timeout(_TIMEOUT_S),
            ) as api:
                yield api
        except ApiError as error:
            raise _refusal(what, error) from error
        except (TimeoutError, httpx2.HTTPError) as error:
            why = str(error) or f"no answer within {_TIMEOUT_S:g} s"
            raise AwayError(f"{what}: the API server does not answer: {why}", external=True) from error
        except msgspec.DecodeError as error:  # a proxy's page, or a line of a watch that was cut off
            raise AwayError(f"{what}: the answer is no JSON: {error}", external=True) from error
        except (ConfigError, OSError) as error:
            raise ActError(f"{what}: no access to a Kubernetes API server: {error}", external=True) from error

    def _config(self) -> SingleConfig:
        config = KubeConfig.from_file(self.kubeconfig) if self.kubeconfig else KubeConfig.from_env()
        found = config.get(self.context or None)
        if found is None:
            raise ConfigError(f"{self.kubeconfig or 'the kubeconfig'} has no context {self.context!r}")
        return found


def _selector(labels: Mapping[str, str] | None) -> dict[str, Any] | None:
    return dict(labels) if labels else None


def _named(resource: Kind, name: str) -> str:
    return f"the {resource.__name__} {name}"


def _refusal(what: str, error: ApiError) -> ActError:
    code, why = error.status.code, error.status.message or ""
    if code == HTTPStatus.NOT_FOUND:
        return MissingError(f"{what}: {why}")
    if code == HTTPStatus.CONFLICT:
        return ConflictError(f"{what}: it has changed meanwhile: {why}")
    if code == HTTPStatus.FORBIDDEN and "exceeded quota" not in why:
        return ActError(
            f"{what}: the API server forbids it: {why} (give trimtab's Role this right)", external=True
        )
    told = f"{what}: the API server answers {code}: {why}"
    if code == HTTPStatus.TOO_MANY_REQUESTS or (code or 0) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return AwayError(told, external=True)
    return ActError(told, external=code == HTTPStatus.UNAUTHORIZED)
