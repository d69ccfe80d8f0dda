"""The connection to an API server.

Credentials are read again when the API server refuses them, since tokens of service accounts and certificates
of clients are replaced while a daemon runs.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import httpx2
import lightkube
import yaml
from httpcore2 import AsyncNetworkStream
from httpcore2._backends.anyio import AnyIOStream
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from flettner.clients.kubernetes.errors import FAILURES, status_of, to_act_error

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
    """Every call raises ActError (see `errors`)."""

    access: Access
    _session: _Session | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

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
        """Yield a client for an answer that does not end soon."""
        try:
            async with self._use() as api:
                yield api
        except FAILURES as error:
            raise to_act_error(what, error) from error

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

    async def close(self) -> None:
        if self._session is not None:
            await self._session.api.close()


def find_place(access: Access) -> tuple[str, str]:
    """Return the address of the API server and the namespace that it leads to.

    Without a kubeconfig that can be read, as where a config is only checked: what `access` says.
    """
    try:
        config = _read_config(access)
    except (ConfigError, OSError):
        return f"{access.kubeconfig} {access.context}", access.namespace
    return config.cluster.server, access.namespace or config.namespace


def _read_config(access: Access) -> SingleConfig:
    """Raises ConfigError, also for a file that is being rewritten."""
    try:
        config = KubeConfig.from_file(access.kubeconfig) if access.kubeconfig else KubeConfig.from_env()
        chosen = config.get(access.context or None)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{access.kubeconfig or 'the kubeconfig'} is no kubeconfig: {error!r}") from error
    if chosen is None:
        raise ConfigError(f"{access.kubeconfig or 'the kubeconfig'} has no context {access.context!r}")
    authority = chosen.cluster.certificate_auth
    if authority and not Path(chosen.abs_file(authority)).is_file():
        raise ConfigError(f"its certificate-authority {authority} is no file")
    return chosen


_start_tls = AnyIOStream.start_tls


async def _start_tls_or_close(
    stream: AnyIOStream,
    ssl_context: ssl.SSLContext,
    server_hostname: str | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - the name that httpcore2 gives it
) -> AsyncNetworkStream:
    try:
        return await _start_tls(stream, ssl_context, server_hostname, timeout)
    except asyncio.CancelledError:
        await stream.aclose()
        raise


def close_cancelled_handshakes() -> None:
    """Close the connection of a TLS handshake that is cancelled, for every client of httpx2 in this process.

    httpcore2 (2.16) closes it if the handshake fails, but not on a cancellation: the socket stays open until
    it is garbage collected. A watch that ends while it connects again, and the end of a daemon, cancel
    handshakes.
    """
    AnyIOStream.start_tls = _start_tls_or_close  # type: ignore[method-assign, assignment]
