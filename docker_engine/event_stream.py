"""One connection to the Docker Engine's events, read in a thread of its own."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import docker
import requests
from docker.errors import DockerException
from docker.types import CancellableStream
from docker.utils import convert_filters, kwargs_from_env

from agent.domain.errors import SensorError
from agent.io.bounded import join_chunks
from docker_engine.parse import ContainerEvent, ContainerSummary, event_of, summaries_of

ACTIONS = ("oom", "die", "start", "kill", "pause", "unpause", "rename", "destroy", "health_status")
NETWORK_ACTIONS = ("connect", "disconnect")
"""Nothing else is sent to us: each health check is three `exec_…` events."""

_LONGEST_EVENT = 2**20  # bytes; a container's labels are in it
_MOST_WAITING = 5000
_JOIN_S = 2.0
_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True)
class ContainerListing:
    """Every container of the host as the Engine sums it up, running or not."""

    containers: tuple[ContainerSummary, ...]


class ContainerEventStream:
    """`async with` opens it and closes it, thread and socket; `next` gives what comes, in order.

    The first is a Listed, taken when the stream was open, so that nothing falls between; each container
    started or connected later is followed by one more. Without a word for `silence_s` the stream ends: an
    Engine that hangs closes nothing.
    """

    def __init__(self, host: str, timeout_s: float, silence_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[ContainerEvent | ContainerListing | SensorError | None] = asyncio.Queue()
        self._thread = threading.Thread(target=self._run, name="docker_events", daemon=True)
        self._turn = threading.Lock()
        self._handed = self._taken = 0
        self._closed = False
        self._open: CancellableStream[bytes] | None = None

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._turn:
            self._closed = True
            if self._open is not None:
                with suppress(OSError, AttributeError, ValueError, DockerException):  # it ended meanwhile
                    self._open.close()
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    async def next(self) -> ContainerEvent | ContainerListing | None:
        """None: the stream has ended for want of news, open it again. Raises SensorError: it is lost."""
        item = await self._items.get()
        self._taken += 1
        if isinstance(item, SensorError):
            raise item
        return item

    def _run(self) -> None:
        last: SensorError | None = SensorError("the Docker Engine has closed its stream of events")
        try:
            self._hear()
        except SensorError as error:
            last = error
        except (DockerException, requests.RequestException, OSError, ValueError, RecursionError) as error:
            quiet = self._open is not None and "timed out" in str(error)
            last = None if quiet else SensorError(f"no word from the Docker Engine: {error}")
        self._hand(last)

    def _hear(self) -> None:
        for item in self._read():
            self._handed += 1
            if self._handed - self._taken > _MOST_WAITING:
                raise ValueError(f"more than {_MOST_WAITING} events wait to be heard")
            self._hand(item)

    def _hand(self, item: ContainerEvent | ContainerListing | SensorError | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def _read(self) -> Iterator[ContainerEvent | ContainerListing]:
        with connected(self._host, self._timeout_s) as api, self._opened(api) as answer:
            yield _listed(api)
            rest = b""
            for chunk in answer.iter_content(_AT_ONCE):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_EVENT:
                    raise ValueError(f"an event of more than {_LONGEST_EVENT} bytes")
                for line in filter(None, map(bytes.strip, lines)):
                    event = event_of(line)
                    yield event
                    if event.action in {"start", "connect"}:
                        yield _listed(api)

    def _opened(self, api: docker.APIClient) -> requests.Response:
        filters = {"type": ["container", "network"], "event": [*ACTIONS, *NETWORK_ACTIONS]}
        answer = api.get(
            f"{api.base_url}/v{api.api_version}/events",
            params={"filters": convert_filters(filters)},
            stream=True,
            timeout=(api.timeout, self._silence_s),
        )
        with self._turn:
            self._open = CancellableStream(iter(()), answer)
            if self._closed:
                self._open.close()
        answer.raise_for_status()
        return answer


def _listed(api: docker.APIClient) -> ContainerListing:
    """Raises ValueError when the list is too long, SensorError when it cannot be read."""
    where = f"{api.base_url}/v{api.api_version}/containers/json"
    with api.get(where, params={"all": 1}, stream=True, timeout=api.timeout) as answer:
        answer.raise_for_status()
        return ContainerListing(summaries_of(join_chunks(answer.iter_content(_AT_ONCE))))


def connected(host: str, timeout_s: float) -> docker.APIClient:
    """`host` as in DOCKER_HOST, which an empty one stands for. Raises OSError, DockerException."""
    options = kwargs_from_env(environment={**os.environ, **({"DOCKER_HOST": host} if host else {})})
    _let_in(str(options.get("base_url") or "unix:///var/run/docker.sock"))
    api = docker.APIClient(**options, timeout=timeout_s, version="auto")  # type: ignore[arg-type]
    api.trust_env = False  # no proxy and no .netrc stands between us and the Engine
    return api


def _let_in(where: str) -> None:
    """Raises OSError when nobody listens on this Unix socket: docker-py would leave its own end open."""
    scheme, _, path = where.partition("unix://")
    if scheme in {"", "http+"} and path.startswith("/"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError as error:
                raise OSError(error.errno, f"{path}: {error.strerror}") from error
