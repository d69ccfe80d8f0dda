"""Keeps the records of this pod's requests for the daemon: bounded, and with each gap known.

Envoy writes its access logs to a unix socket, as on a host. The daemon follows them over HTTP; what it has
not read while it is away, or restarts, stays here until newer records need the room.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import msgpack
import structlog
from aiohttp import web

from flettner.clients.envoy_records import pods
from flettner.clients.envoy_records.record import MESSAGE_BYTES, records_socket

log = structlog.get_logger(__name__)

MOST_BYTES = 16 << 20  # two minutes of 100 requests a second, each with three records of 400 bytes
_IDLE_S = 1.0  # between two signs of life


class RecordBuffer:
    """The newest messages of Envoy's logs, numbered from 1. `boot` differs for each run of the program."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.boot = uuid4().hex
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: deque[tuple[float, bytes]] = deque()  # loop time and message
        self._last = 0  # number of the newest message
        self._dropped_s = float("-inf")  # loop time of the newest message that is no longer kept
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, message: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        self._kept.append((now_s, message))
        self._bytes += len(message)
        self._last += 1
        while self._bytes > self._most_bytes:
            self._dropped_s, dropped = self._kept.popleft()
            self._bytes -= len(dropped)
        self._wake()

    def lose(self) -> None:
        """Records could not be read: a gap after all that are kept."""
        self._last += 1
        self._kept.clear()
        self._bytes, self._dropped_s = 0, asyncio.get_running_loop().time()
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def _dropped(self) -> int:
        """Number of the newest message that is no longer kept."""
        return self._last - len(self._kept)

    def _begin(self, boot: str, after: int, since_s: float) -> tuple[int, bool]:
        """The number to go on after, and whether messages between are missing."""
        if boot == self.boot:
            return max(after, self._dropped), after < self._dropped
        from_s = asyncio.get_running_loop().time() - since_s
        older = sum(1 for at_s, _ in self._kept if at_s < from_s)
        return self._dropped + older, self._dropped_s >= from_s

    async def follow(self, boot: str, after: int, since_s: float) -> AsyncIterator[bytes]:
        """Yield msgpack values: a map first, then `[number, message]`, nil for idle times, a map at gaps.

        Begin after the message `after` of the same `boot`, else with messages of the last `since_s` seconds.
        """
        at, lost = self._begin(boot, after, since_s)
        yield _pack({pods.BOOT: self.boot, pods.AFTER: at, pods.LOST: lost})
        while True:
            changed = self._changed
            if at < self._dropped:
                at = self._dropped
                yield _pack({pods.LOST: True})
            while at < self._last and at >= self._dropped:
                at += 1
                yield b"\x92" + _pack(at) + self._kept[at - self._last - 1][1]  # an array of two
            if at >= self._last and self._ended:
                yield _pack({pods.END: True})
                return
            if at == self._last:
                try:
                    await asyncio.wait_for(changed.wait(), _IDLE_S)
                except TimeoutError:
                    yield _pack(None)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /records?boot=B&after=N&since_s=S"""
        try:
            after, since_s = int(request.query.get(pods.AFTER, 0)), float(request.query.get(pods.SINCE_S, 0))
        except ValueError:
            raise web.HTTPBadRequest(text="after and since_s are numbers\n") from None
        response = web.StreamResponse(headers={"Content-Type": "application/msgpack"})
        await response.prepare(request)
        try:
            async for piece in self.follow(request.query.get(pods.BOOT, ""), after, since_s):
                await response.write(piece)
        except ConnectionError:
            pass  # the daemon has gone; it comes back with its number
        return response

    async def listen(self, home: Path) -> asyncio.Server:
        """Receive Envoy's logs on the socket that its configuration names."""
        return await asyncio.get_running_loop().create_unix_server(
            lambda: _Connection(self), str(records_socket(home))
        )


class _Connection(asyncio.Protocol):
    """Envoy opens one for each log and thread."""

    def __init__(self, buffer: RecordBuffer) -> None:
        self._buffer = buffer
        self._transport: asyncio.BaseTransport | None = None
        self._unpacker = msgpack.Unpacker(max_buffer_size=MESSAGE_BYTES, raw=True, strict_map_key=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                self._buffer.add(_pack(message))
        except (msgpack.UnpackException, ValueError) as error:
            log.warning("records.unreadable", why=repr(error))
            self._buffer.lose()
            if self._transport is not None:
                self._transport.close()


def _pack(value: object) -> bytes:
    return bytes(msgpack.packb(value, use_bin_type=False))
