"""The event stream of the Docker Engine.

`EventStream` is one connection, read in a thread of its own, because docker-py blocks. `follow_events` opens
the stream again whenever it ends, and goes on after the last event it has seen. The sensor uses the first,
the actuator the second.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Self, TypeVar

import docker
import requests
from docker.errors import DockerException
from docker.types import CancellableStream
from docker.utils import convert_filters
from tenacity import AsyncRetrying, retry_if_exception_type

from flettner.agent.domain.errors import SensorError
from flettner.agent.retrying import Backoff
from flettner.clients.docker.parse import ContainerEvent, event_of

THREAD_NAME: Final = "docker-events"
RESYNC: Final = ContainerEvent.model_validate({"Action": "resync"})
"""Events may be missing: look at the current state."""

Connect = Callable[[], docker.APIClient]

_T = TypeVar("_T")
_MAX_EVENT_BYTES = 2**20  # the labels of a container are in it
_MAX_QUEUED = 5000
_CHUNK_BYTES = 2**16
_END_WITHIN_S = 2.0
_BACK_OFF_S = (0.1, 5.0)  # first and longest wait before the stream is opened again
_SILENCE_S = 60.0
_STREAM_ERRORS = (DockerException, requests.RequestException, OSError, ValueError, RecursionError)


class EventStream(Generic[_T]):
    """One connection to `/events`. `async with` opens it and closes it, thread and socket.

    `read` turns the lines of the open stream into items; it runs in the thread and may ask the Engine for
    more. Without an event for `silence_s` seconds the stream ends: an Engine that hangs closes no connection.
    `since`: seconds since the epoch with nanoseconds; earlier events are left out.
    """

    def __init__(
        self,
        connect: Connect,
        filters: Mapping[str, Sequence[str]],
        read: Callable[[docker.APIClient, Iterator[bytes]], Iterator[_T]],
        *,
        silence_s: float = _SILENCE_S,
        since: str | None = None,
    ) -> None:
        self._connect = connect
        self._params = {"filters": convert_filters({name: list(values) for name, values in filters.items()})}
        if since:
            self._params["since"] = since
        self._read = read
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[_T | SensorError | None] = asyncio.Queue()
        self._delivered = self._taken = 0
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._stream: CancellableStream[bytes] | None = None

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            if self._stream is not None:
                with suppress(OSError, AttributeError, ValueError, DockerException):  # it has ended already
                    self._stream.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_WITHIN_S):
                await self._ended.wait()
                self._thread.join()

    async def next(self) -> _T | None:
        """Return the next item; None: no event for `silence_s`. Raises SensorError if the stream is lost."""
        item = await self._items.get()
        self._taken += 1
        if isinstance(item, SensorError):
            raise item
        return item

    def _run(self) -> None:
        end: SensorError | None = SensorError("the Docker Engine has closed its event stream")
        try:
            with self._connect() as api, self._open(api) as answer:
                for item in self._read(api, _lines(answer)):
                    self._delivered += 1
                    if self._delivered - self._taken > _MAX_QUEUED:
                        raise ValueError(f"more than {_MAX_QUEUED} events are queued")
                    self._call(self._items.put_nowait, item)
        except SensorError as error:
            end = error
        except _STREAM_ERRORS as error:
            silent = self._stream is not None and "timed out" in str(error)
            end = None if silent else SensorError(f"no event stream from the Docker Engine: {error}")
        self._call(self._items.put_nowait, end)
        self._call(self._ended.set)

    def _call(self, callback: Callable[..., object], *args: Any) -> None:  # noqa: ANN401
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _open(self, api: docker.APIClient) -> requests.Response:
        answer = api.get(
            f"{api.base_url}/v{api.api_version}/events",
            params=self._params,
            stream=True,
            timeout=(api.timeout, self._silence_s),
        )
        with self._lock:
            self._stream = CancellableStream(iter(()), answer)
            if self._closed:
                self._stream.close()
        answer.raise_for_status()
        return answer


async def follow_events(
    connect: Connect, filters: Mapping[str, Sequence[str]], since: str | None = None
) -> AsyncGenerator[ContainerEvent, None]:
    """Yield events until the generator is closed, over restarts of the Engine.

    RESYNC comes first, whenever the stream was opened again, and for an event that cannot be read.
    """
    backoff = Backoff(*_BACK_OFF_S)
    async for attempt in AsyncRetrying(retry=retry_if_exception_type(SensorError), wait=backoff):
        with attempt:
            async with EventStream(connect, filters, _resync_and_events, since=since) as stream:
                while (event := await stream.next()) is not None:
                    backoff.reset()
                    since = just_after(event) or since
                    yield event
            raise SensorError("the event stream is silent")


def event_or_resync(line: bytes) -> ContainerEvent:
    with suppress(SensorError):
        event = event_of(line)
        return event if event.action else RESYNC
    return RESYNC


def just_after(event: ContainerEvent) -> str | None:
    """Return the `since` that leaves the event out: seconds with nanoseconds behind the point."""
    if not event.time_ns:
        return None
    seconds, nanos = divmod(event.time_ns + 1, 10**9)
    return f"{seconds}.{nanos:09d}"


def _resync_and_events(_: docker.APIClient, lines: Iterator[bytes]) -> Iterator[ContainerEvent]:
    """Yield RESYNC once the stream is open, so that no event is lost before the caller reads the state."""
    yield RESYNC
    yield from map(event_or_resync, lines)


def _lines(answer: requests.Response) -> Iterator[bytes]:
    """Raises ValueError for an event that is too long."""
    rest = b""
    for chunk in answer.iter_content(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {_MAX_EVENT_BYTES} bytes")
        yield from filter(None, map(bytes.strip, lines))
