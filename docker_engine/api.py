"""One call to the Docker Engine: in a thread, with an end, and with its failure named."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.utils import kwargs_from_env

from agent.domain.errors import ActError

Json = dict[str, Any]

_T = TypeVar("_T")
_UNIX = "unix://"
_NOT_FOUND = 404
_NOBODY = (FileNotFoundError, ConnectionRefusedError, PermissionError, NotADirectoryError, socket.gaierror)

# Not the event loop's own pool, which has six threads on two cores: an Engine that hangs keeps them all, and
# the journal is written in that pool.
_THREADS = ThreadPoolExecutor(max_workers=24, thread_name_prefix="docker")


class MissingError(ActError):
    """The Engine knows no such container, image or network."""


class SilentError(ActError):
    """The Engine was asked, and nobody knows what became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAt:
    """`host` as in DOCKER_HOST; empty: what stands there, else Docker's own socket."""

    host: str
    timeout_s: float
    _version: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    async def ask(self, asked: str, call: Callable[[docker.APIClient], _T], longer_s: float = 0.0) -> _T:
        """What `call` answers. Raises MissingError, SilentError, or ActError when the Engine refuses.

        Cancelled, it is waited for first: by then it is known what was done.
        """

        def in_thread() -> _T:
            with self.connected() as api:
                return call(api)

        answer = asyncio.get_running_loop().run_in_executor(_THREADS, in_thread)
        try:
            return await _settled(answer)
        except APIError as error:
            said = str(error.explanation or error)
            kind = MissingError if error.status_code == _NOT_FOUND else ActError
            raise kind(f"docker: {asked}: {said}") from error
        except (DockerException, requests.RequestException, OSError, ValueError) as error:
            if not _heard(error):
                why = "is it running, and may this user use its socket?"
                raise ActError(f"docker: {asked}: no Engine at {self._where} ({error}): {why}") from error
            within = f" within {self.timeout_s + longer_s:g} s" if _timed_out(error) else ""
            why = f"the Engine at {self._where} did not answer{within}"
            raise SilentError(f"docker: {asked}: {why} ({error})") from error

    def connected(self) -> docker.APIClient:
        """For one thread; the caller closes it. Raises what sockets, requests and docker-py raise."""
        options: Json = {"base_url": self.host} if self.host else dict(kwargs_from_env())
        if self._where.startswith(_UNIX):
            _knock(self._where.removeprefix(_UNIX), self.timeout_s)
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
        return self.host or str(kwargs_from_env().get("base_url") or f"{_UNIX}/var/run/docker.sock")


def post(api: docker.APIClient, path: str, body: Json) -> None:
    """Raw JSON, where docker-py would have it in words of its own. Raises APIError."""
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
        answer.exception()  # heard, so that nobody complains
        raise


def _knock(path: str, timeout_s: float) -> None:
    """Raises OSError when nobody listens there: docker-py would leave its own end of it open."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        probe.connect(path)


def _heard(error: BaseException | None) -> bool:
    """Whether the Engine may have been asked: not when nobody let us in."""
    while error is not None:
        if any(isinstance(one, _NOBODY) for one in _with_arguments(error)):
            return False
        error = error.__cause__ or error.__context__
    return True


def _with_arguments(error: BaseException) -> Iterator[BaseException]:
    """Those who pass an error on wrap what happened in their arguments."""
    yield error
    for argument in error.args:
        if isinstance(argument, BaseException):
            yield from _with_arguments(argument)


def _timed_out(error: Exception) -> bool:
    return isinstance(error, requests.Timeout) or "timed out" in str(error)
