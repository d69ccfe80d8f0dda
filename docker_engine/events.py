"""The Docker Engine's events as they happen, over restarts of the Engine."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import docker
import requests
from docker.errors import DockerException
from docker.types import CancellableStream
from docker.utils import convert_filters

from agent.io.bounded import parse_json

Json = dict[str, Any]

RESYNC: Json = {"resync": True}
_BACK_OFF_S = (0.1, 5.0)  # first and longest wait for an Engine that is away
_AT_ONCE = 2**16
_LONGEST_EVENT = 2**20  # bytes; a container's labels are in it
_LATEST_NS = 2**63 - 1  # what the Engine itself can say
_SILENCE_S = 60.0  # then the stream is opened anew: an Engine that hangs closes nothing


async def events(
    connected: Callable[[], docker.APIClient], filters: Mapping[str, Sequence[str]], since: str | None
) -> AsyncGenerator[Json, None]:
    """Event dicts as the Engine writes them, and RESYNC whenever a stream is open that was not before."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[Json] = asyncio.Queue()

    def tell(event: Json) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(heard.put_nowait, event)

    listener = _Listener(connected, filters, since, tell)
    thread = threading.Thread(target=listener.run, name="docker-events", daemon=True)
    thread.start()
    try:
        while True:
            yield await heard.get()
    finally:
        listener.close()


class _Listener:
    """The thread's work: `run` until `close` is called from another thread."""

    def __init__(
        self,
        connected: Callable[[], docker.APIClient],
        filters: Mapping[str, Sequence[str]],
        since: str | None,
        tell: Callable[[Json], None],
    ) -> None:
        self._connected = connected
        self._filters = {name: list(values) for name, values in filters.items()}
        self._since = since
        self._tell = tell
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._stream: CancellableStream[bytes] | None = None

    def run(self) -> None:
        first, longest = _BACK_OFF_S
        back_off = first
        while not self._ended.is_set():
            try:
                for event in self._listened():
                    back_off = first
                    self._tell(event)
            except (DockerException, requests.RequestException, OSError, ValueError):
                pass  # the Engine is away, or went: what matters is that it comes back
            self._ended.wait(back_off)
            back_off = min(2 * back_off, longest)

    def close(self) -> None:
        self._ended.set()
        with self._turn:
            if self._stream is not None:
                with suppress(OSError, AttributeError, ValueError):  # it has ended by itself meanwhile
                    self._stream.close()

    def _listened(self) -> Iterator[Json]:
        """RESYNC once the stream is open, so that nothing falls between looking and listening."""
        with self._connected() as api, self._opened(api) as answer:
            yield RESYNC
            rest = b""
            for chunk in answer.iter_content(_AT_ONCE):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_EVENT:
                    raise ValueError(f"an event of more than {_LONGEST_EVENT} bytes")
                for line in filter(None, map(bytes.strip, lines)):
                    event = event_of(line)
                    self._since = _just_after(event) or self._since
                    yield event

    def _opened(self, api: docker.APIClient) -> requests.Response:
        asked = {"filters": convert_filters(self._filters), "since": self._since}
        answer = api.get(
            f"{api.base_url}/v{api.api_version}/events",
            params={name: value for name, value in asked.items() if value},
            stream=True,
            timeout=(api.timeout, _SILENCE_S),
        )
        answer.raise_for_status()
        with self._turn:
            self._stream = CancellableStream(iter(()), answer)
            if self._ended.is_set():
                self._stream.close()
        return answer


def event_of(line: bytes) -> Json:
    """RESYNC for what cannot be read: whatever it would have said, it can be looked at."""
    try:
        event = parse_json(line)
    except ValueError:
        return RESYNC
    actor = (event.get("Actor") or {}) if isinstance(event, dict) else None
    told = (actor.get("Attributes") or {}) if isinstance(actor, dict) else None
    if not isinstance(told, dict) or not all(isinstance(one, str) for one in told.values()):
        return RESYNC
    return dict(event)


def _just_after(event: Json) -> str | None:
    """`since` takes seconds with nanoseconds behind the point."""
    at = event.get("timeNano")
    if not isinstance(at, int) or not 0 <= at < _LATEST_NS:
        return None
    seconds, nanos = divmod(at + 1, 10**9)
    return f"{seconds}.{nanos:09d}"
