"""Hears from the proxy how each attempt at each request went, and says so once a second."""

import asyncio
import reprlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from agent.domain.errors import SensorError
from agent.domain.ports import Now, View
from agent.domain.reading import RequestSample, Sample, SourceState
from agent.plugins.option_errors import check_periods
from sensors.proxy_requests.access_log import OpenRequests, record_of

SOURCE = "proxy_requests"
UNREADABLE = "proxy_requests records"
RETRY_S = 5.0
QUIET_S = 60.0  # without an unreadable record: all is well again
MESSAGE_BYTES = 16 << 20
NOT_INFERENCE = "/v1/models"


@dataclass(frozen=True, slots=True)
class ProxyRequests:
    """`paths`: only requests whose path starts so count. An answer that is not streamed has no byte before
    its end, so it is called stalled later."""

    paths: tuple[str, ...] = ("/v1/",)
    stalled_after_s: float = 10.0
    unstreamed_stalled_after_s: float = 120.0
    every_s: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(self.paths))  # TOML has lists
        if not self.paths or not all(str(path).startswith("/") for path in self.paths):
            raise ValueError(f'paths must be prefixes such as "/v1/", not {self.paths!r}')
        check_periods(self, "stalled_after_s", "unstreamed_stalled_after_s", "every_s")

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        path = view.state_dir / "envoy" / "records.sock"
        inbox = _Inbox(self)
        said = _Said(emit, now)
        loop = asyncio.get_running_loop()
        while True:
            try:
                server = await loop.create_unix_server(
                    lambda: _Connection(inbox), sock=_bind(path), start_serving=False
                )
            except OSError as error:
                said.say(SOURCE, False, f"cannot listen on {path}: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await server.start_serving()  # here: a cancellation in it must close the socket
                while True:
                    await asyncio.sleep(self.every_s)
                    _report(inbox, said, loop.time())
                    if requests := inbox.ledger.fetch(loop.time()):
                        emit(RequestSample(at=now(), requests=requests))
            finally:
                server.close()
                inbox.hang_up()


def _bind(path: Path) -> socket.socket:
    """Replaces the socket of a daemon that is gone; Envoy connects again by itself. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener


@dataclass(slots=True)
class _Said:
    """Says a state of a source when it changes, not again."""

    emit: Callable[[Sample], None]
    now: Now
    states: dict[str, bool] = field(default_factory=dict)

    def say(self, source: str, available: bool, why: str = "") -> None:
        if self.states.get(source) is not available:
            self.states[source] = available
            self.emit(SourceState(at=self.now(), source=source, available=available, why=why))


def _report(inbox: "_Inbox", said: _Said, now_s: float) -> None:
    if inbox.speaking:
        said.say(SOURCE, True, "Envoy is connected")
    elif SOURCE in said.states:
        said.say(SOURCE, False, "Envoy has closed its connection")
    if inbox.unreadable:
        said.say(UNREADABLE, False, f"{inbox.unreadable} cannot be read and do not count: {inbox.why}")
        if now_s > inbox.unreadable_s + QUIET_S:
            said.say(UNREADABLE, True, f"{inbox.unreadable} could not be read, none for {QUIET_S:g} s")
            inbox.unreadable = 0


class _Inbox:
    """What all connections have brought."""

    def __init__(self, options: ProxyRequests) -> None:
        self.paths = options.paths
        self.ledger = OpenRequests(
            stalled_after_s=options.stalled_after_s,
            unstreamed_stalled_after_s=options.unstreamed_stalled_after_s,
        )
        self.connections: set[_Connection] = set()
        self.speaking: set[_Connection] = set()  # those that brought something readable
        self.unreadable = 0
        self.unreadable_s = 0.0
        self.why = ""

    def take(self, message: object) -> None:
        """`[tag, [[seconds, fields], ...]]`. Raises SensorError when it is something else."""
        match message:
            case [str() as tag, [*entries], *_]:
                for entry in entries:
                    self._entry(tag, entry)
            case _:
                raise SensorError(f"not a message of Envoy's log: {reprlib.repr(message)}")

    def _entry(self, tag: str, entry: object) -> None:
        match entry:
            case [_, dict() as fields]:
                try:
                    record = record_of(tag, fields)
                except SensorError as error:
                    self.refuse(error)
                else:
                    if record.path.startswith(self.paths) and not record.path.startswith(NOT_INFERENCE):
                        self.ledger.take(record, asyncio.get_running_loop().time())
            case _:
                self.refuse(SensorError(f"not an entry of Envoy's log: {reprlib.repr(entry)}"))

    def refuse(self, error: Exception) -> None:
        self.unreadable += 1
        self.unreadable_s = asyncio.get_running_loop().time()
        self.why = str(error)

    def hang_up(self) -> None:
        for connection in tuple(self.connections):
            connection.hang_up()


class _Connection(asyncio.Protocol):
    def __init__(self, inbox: _Inbox) -> None:
        self._inbox = inbox
        self._transport: asyncio.BaseTransport | None = None
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=MESSAGE_BYTES, strict_map_key=False, unicode_errors="replace"
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inbox.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._inbox.connections.discard(self)
        self._inbox.speaking.discard(self)

    def data_received(self, data: bytes) -> None:
        """After what cannot be read nothing can: the next connection starts at a message's beginning."""
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                self._inbox.take(message)
                self._inbox.speaking.add(self)
        except (SensorError, msgpack.UnpackException, ValueError, TypeError) as error:
            self._inbox.refuse(error)
            self.hang_up()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()


plugin = ProxyRequests
