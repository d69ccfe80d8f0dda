"""One connection to an API server for all targets of a daemon, with what it knows of the objects there.

It belongs to an event loop and closes when the loop ends. Credentials are read again when the API server
refuses them, since tokens of service accounts and certificates of clients are replaced while a daemon runs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import httpx2
import lightkube
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from flettner.clients.kubernetes.documents import Kind
from flettner.clients.kubernetes.errors import FAILURES, status_of, to_act_error
from flettner.clients.kubernetes.handshake import close_cancelled_handshakes
from flettner.clients.kubernetes.mirror import Mirror, Pace

MANAGER: Final = "flettner"
"""The field manager of every write: `kubectl get --show-managed-fields` names it."""

CALL_S: Final = 15.0
_REOPEN_S: Final = 30.0
"""The least time between two readings of the credentials while the API server does not answer."""

_T = TypeVar("_T")


class Access(NamedTuple):
    """`kubeconfig`: a file; empty: the pod's service account, else KUBECONFIG, else ~/.kube/config."""

    kubeconfig: str
    context: str
    namespace: str  # empty: that of the kubeconfig's context or of the pod


@dataclass(slots=True, eq=False)
class _Session:
    """A client with the credentials that were read when it was made."""

    api: lightkube.AsyncClient
    opened_s: float  # of the loop's clock
    users: int = 0
    outdated: bool = False


@dataclass(slots=True, eq=False)
class Connection:
    """Use `connection_to`. Every call raises ActError (see `errors`)."""

    access: Access
    _session: _Session | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _mirrors: dict[tuple[Kind, frozenset[tuple[str, str]]], Mirror] = field(default_factory=dict)

    async def call(self, what: str, ask: Callable[[lightkube.AsyncClient], Awaitable[_T]]) -> _T:
        """`what`: the call in words, for its error."""
        try:
            async with asyncio.timeout(CALL_S):
                try:
                    return await self._ask(ask)
                except httpx2.HTTPStatusError as error:
                    if status_of(error) != HTTPStatus.UNAUTHORIZED:
                        raise
                return await self._ask(ask)  # with credentials that are read again
        except FAILURES as error:
            raise to_act_error(what, error) from error

    @asynccontextmanager
    async def stream(self, what: str) -> AsyncIterator[lightkube.AsyncClient]:
        """For an answer that does not end soon."""
        try:
            async with self._use() as api:
                yield api
        except FAILURES as error:
            raise to_act_error(what, error) from error

    def mirror(self, kind: Kind, labels: Mapping[str, str], pace: Pace) -> Mirror:
        """Return what is known of the objects of a kind; it keeps itself up to date from now on."""
        key = kind, frozenset(labels.items())
        if key not in self._mirrors:
            self._mirrors[key] = Mirror(self, kind, labels, pace)
        return self._mirrors[key]

    def has_written(self, kind: Kind) -> None:
        """Let the next read of a mirror include a write that has just been made."""
        for mirror in self._mirrors.values():
            if mirror.kind is kind:
                mirror.refresh()

    async def _ask(self, ask: Callable[[lightkube.AsyncClient], Awaitable[_T]]) -> _T:
        async with self._use() as api:
            return await ask(api)

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[lightkube.AsyncClient]:
        session = await self._open()
        session.users += 1
        try:
            yield session.api
        except httpx2.HTTPError as error:
            age_s = asyncio.get_running_loop().time() - session.opened_s
            session.outdated |= status_of(error) == HTTPStatus.UNAUTHORIZED
            session.outdated |= isinstance(error, httpx2.TransportError) and age_s > _REOPEN_S
            raise
        finally:
            session.users -= 1
            if session.outdated and not session.users:
                await session.api.close()

    async def _open(self) -> _Session:
        async with self._opening:
            if self._session is None or self._session.outdated:
                api = lightkube.AsyncClient(
                    config=await asyncio.to_thread(_read_config, self.access),
                    namespace=self.access.namespace or None,
                    field_manager=MANAGER,
                    timeout=httpx2.Timeout(CALL_S),
                )
                self._session = _Session(api, asyncio.get_running_loop().time())
            return self._session

    async def close_with_loop(self) -> None:
        """asyncio.run cancels the tasks that are left when its own has ended."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.gather(*(mirror.close() for mirror in self._mirrors.values()))
            if self._session is not None:
                await self._session.api.close()


_connections: dict[tuple[asyncio.AbstractEventLoop, Access], tuple[Connection, asyncio.Task[None]]] = {}
"""Shared by the engines, which the core makes one by one for each target."""


def connection_to(access: Access) -> Connection:
    """Return the connection of this event loop."""
    key = asyncio.get_running_loop(), access
    if key not in _connections:
        close_cancelled_handshakes()
        made = Connection(access)
        closing = asyncio.create_task(made.close_with_loop(), name="Kubernetes connection")
        closing.add_done_callback(lambda _: _connections.pop(key))
        _connections[key] = made, closing
    return _connections[key][0]


def find_place(access: Access) -> tuple[str, str]:
    """Return the address of the API server and the namespace that it leads to.

    Without a kubeconfig that can be read, as where a config is only checked: what `access` says.
    """
    try:
        found = _read_config(access)
    except (ConfigError, OSError):
        return f"{access.kubeconfig} {access.context}", access.namespace
    return found.cluster.server, access.namespace or found.namespace


def _read_config(access: Access) -> SingleConfig:
    """Raises ConfigError, also for a file that is being rewritten."""
    try:
        config = KubeConfig.from_file(access.kubeconfig) if access.kubeconfig else KubeConfig.from_env()
        found = config.get(access.context or None)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{access.kubeconfig or 'the kubeconfig'} is no kubeconfig: {error!r}") from error
    if found is None:
        raise ConfigError(f"{access.kubeconfig or 'the kubeconfig'} has no context {access.context!r}")
    authority = found.cluster.certificate_auth
    if authority and not Path(found.abs_file(authority)).is_file():
        raise ConfigError(f"its certificate-authority {authority} is no file")
    return found
