"""One call to the Docker Engine: in a thread, with a timeout, and with a typed error."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.utils import kwargs_from_env

from flettner.agent.domain.errors import ActError
from flettner.primitives.sockets import probe_socket

Json = dict[str, Any]

_T = TypeVar("_T")
_UNIX = "unix://"
_NOT_FOUND = 404
_NOT_CONNECTED = (
    FileNotFoundError,
    ConnectionRefusedError,
    PermissionError,
    NotADirectoryError,
    socket.gaierror,
)

# Not the event loop's own pool, which has six threads on two cores: an Engine that hangs would keep them all,
# and file access, DNS and the other adapters wait for a free thread in that pool.
_THREADS = ThreadPoolExecutor(max_workers=24, thread_name_prefix="docker")


class MissingError(ActError):
    """The Engine knows no such container, image or network."""


class SilentError(ActError):
    """The Engine did not answer, so the outcome of the call is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAt:
    """`host` as in DOCKER_HOST; empty: the value of DOCKER_HOST, else Docker's own socket."""

    host: str
    timeout_s: float
    _version: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    async def ask(self, what: str, call: Callable[[docker.APIClient], _T], longer_s: float = 0.0) -> _T:
        """Return the result of `call`. Raises MissingError, SilentError, or ActError if the Engine refuses.

        A cancelled call still waits for the answer: until then its outcome is unknown.
        """

        def in_thread() -> _T:
            with self.connected() as api:
                return call(api)

        answer = asyncio.get_running_loop().run_in_executor(_THREADS, in_thread)
        try:
            return await _settled(answer)
        except APIError as error:
            why = str(error.explanation or error)
            kind = MissingError if error.status_code == _NOT_FOUND else ActError
            raise kind(f"docker: {what}: {why}") from error
        except (DockerException, requests.RequestException, OSError, ValueError) as error:
            if not _was_sent(error):
                why = "is it running, and may this user use its socket?"
                raise ActError(f"docker: {what}: no Engine at {self._where} ({error}): {why}") from error
            within = f" within {self.timeout_s + longer_s:g} s" if _timed_out(error) else ""
            why = f"the Engine at {self._where} did not answer{within}"
            raise SilentError(f"docker: {what}: {why} ({error})", external=True) from error

    def connected(self) -> docker.APIClient:
        """Open a client for one thread; the caller closes it. Raises OSError, DockerException, …"""
        options: Json = dict(self._options)
        _probe_socket(self._where, self.timeout_s)
        api = docker.APIClient(
            **options,
            timeout=self.timeout_s,  # type: ignore[arg-type]
            version=self._version.get("api", "auto"),
        )
        api.trust_env = False  # no proxy and no .netrc stands between us and the Engine
        self._version["api"] = str(api.api_version)
        return api

    @property
    def _where(self) -> str:
        return self.host or str(self._options.get("base_url") or f"{_UNIX}/var/run/docker.sock")

    @property
    def _options(self) -> Json:
        host = {"DOCKER_HOST": self.host} if self.host else {}
        return dict(kwargs_from_env(environment={**os.environ, **host}))


def post(api: docker.APIClient, path: str, body: Json) -> None:
    """Post raw JSON, where docker-py takes arguments of its own. Raises APIError."""
    answer = api.post(
        f"{api.base_url}/v{api.api_version}{path}",
        data=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=api.timeout,
    )
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        raise create_api_error_from_http_exception(error) from error


async def _settled(answer: asyncio.Future[_T]) -> _T:
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        await asyncio.wait([answer])
        answer.exception()  # retrieved: asyncio logs errors that are not
        raise


def _probe_socket(where: str, timeout_s: float) -> None:
    """Raises OSError if no process listens on this Unix socket: docker-py would leave its own end open."""
    if not where.startswith(_UNIX):
        return
    path = where.removeprefix(_UNIX)
    try:
        probe_socket(Path(path), timeout_s)
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror or error}") from error


def _was_sent(error: BaseException | None) -> bool:
    """Return whether the Engine may have received the call: not if there was no connection."""
    while error is not None:
        if any(isinstance(cause, _NOT_CONNECTED) for cause in _with_arguments(error)):
            return False
        error = error.__cause__ or error.__context__
    return True


def _with_arguments(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those in its arguments, where requests and urllib3 keep the original error."""
    yield error
    for argument in error.args:
        if isinstance(argument, BaseException):
            yield from _with_arguments(argument)


def _timed_out(error: Exception) -> bool:
    return isinstance(error, requests.Timeout) or "timed out" in str(error)
