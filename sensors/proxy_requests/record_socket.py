"""The socket to which the Envoy of all targets reports its requests, shared by the sensors of one process."""

import asyncio
import reprlib
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgpack

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now
from flettner.clients.envoy_records.record import MESSAGE_BYTES, split_tag

RECORD_CLOCK_S = 1.0  # Envoy dates a record in whole seconds

_OPEN: dict[Path, "RecordSocket"] = {}
"""By path. A process runs a sensor for each target, and a socket has one listener."""


@asynccontextmanager
async def subscribed(path: Path, target: str, inbox: "Inbox", now: Now) -> AsyncIterator[None]:
    """Receive the target's records; the first sensor opens the socket, the last sensor closes it.

    `now`: the wall clock, with which Envoy dates its records. Raises OSError if it cannot be opened.
    """
    shared = _OPEN.get(path) or _OPEN.setdefault(path, RecordSocket(path, now))
    shared.inboxes[target] = inbox
    try:
        yield
    finally:
        del shared.inboxes[target]
        if not shared.inboxes:
            del _OPEN[path]
            await shared.close()


class Inbox(Protocol):
    """The records of one target. `active`: its connections, which have sent a readable message."""

    active: "set[Connection]"

    def add(self, log: str, fields: Mapping[Any, Any]) -> None:
        """Add a record of Envoy's log `us` or `ds`."""
        ...

    def count_unreadable(self, error: Exception) -> None: ...


_AnyInbox = TypeVar("_AnyInbox", bound=Inbox)


class RecordSocket:
    """Gives each record to the inbox of its target; records of targets without an inbox are dropped.

    So are those of requests that ended before the socket was opened: Envoy keeps some while no daemon runs,
    and they would count for the seconds in which they arrive.
    """

    def __init__(self, path: Path, now: Now) -> None:
        self.inboxes: dict[str, Inbox] = {}
        self._now, self._began_s = now, asyncio.get_running_loop().time()
        self.connections: set[Connection] = set()
        self._listener = _bind(path)
        self._serving = asyncio.create_task(self._serve(), name="records of requests")

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Connection(self), sock=self._listener)
        try:
            await server.serve_forever()
        finally:
            server.close()
            for connection in tuple(self.connections):
                connection.close()

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})
        self._listener.close()  # of a task that was cancelled before it ran

    def add(self, message: object, connection: "Connection") -> None:
        """Add a message `[TARGET/LOG, [[seconds, fields], ...]]`. Raises SensorError for another format."""
        if inbox := add_message(self.inboxes, message, from_s=self._from_s()):
            connection.inbox = inbox
            inbox.active.add(connection)

    def _from_s(self) -> float:
        """Unix time since which records count, by the clock that Envoy has too; it moves with steps of it."""
        counted_s = asyncio.get_running_loop().time() - self._began_s
        return self._now().timestamp() - counted_s - RECORD_CLOCK_S

    def count_unreadable(self, error: Exception, of: Inbox | None) -> None:
        """Count an unreadable message; for all targets if the connection's target is unknown."""
        for inbox in self.inboxes.values() if of is None else (of,):
            inbox.count_unreadable(error)


def add_message(
    inboxes: Mapping[str, _AnyInbox], message: object, *, from_s: float = float("-inf")
) -> _AnyInbox | None:
    """Give the records of a message `[TARGET/LOG, [[seconds, fields], ...]]` to the inbox of its target.

    `from_s`: Unix time; older records are dropped. Returns that inbox. Raises SensorError for another format.
    """
    match message:
        case [str() as tag, [*entries], *_]:
            target, log = split_tag(tag)
        case _:
            raise SensorError(f"not a message of Envoy's log: {reprlib.repr(message)}")
    inbox = inboxes.get(target)
    if inbox is not None:
        for entry in entries:
            _add_entry(inbox, log, entry, from_s)
    return inbox


def _add_entry(inbox: Inbox, log: str, entry: object, from_s: float) -> None:
    match entry:
        case [int() as written_s, dict()] if written_s < from_s:
            pass
        case [_, dict() as fields]:
            inbox.add(log, fields)
        case _:
            inbox.count_unreadable(SensorError(f"not an entry of Envoy's log: {reprlib.repr(entry)}"))


class Connection(asyncio.Protocol):
    """A connection of Envoy, which opens a connection for each target, log and thread."""

    def __init__(self, shared: RecordSocket) -> None:
        self._shared = shared
        self.inbox: Inbox | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=MESSAGE_BYTES, strict_map_key=False, unicode_errors="replace"
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._shared.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._shared.connections.discard(self)
        if self.inbox is not None:
            self.inbox.active.discard(self)

    def data_received(self, data: bytes) -> None:
        """Add the messages; close after an unreadable message: a new connection starts a full message."""
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                self._shared.add(message, self)
        except (SensorError, msgpack.UnpackException, ValueError, TypeError) as error:
            self._shared.count_unreadable(error, self.inbox)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _bind(path: Path) -> socket.socket:
    """Bind the socket, replacing that of a former daemon; Envoy reconnects by itself. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
