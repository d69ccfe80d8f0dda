"""The audit journal as a stream of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import structlog
from aiohttp import web

from flettner.agent.api.external_tokens import ReviewError
from flettner.agent.api.middleware import ACCESS_CONTROL
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.rate_limits import PIECE
from flettner.agent.api.routes.audit import read_slice, seq_of
from flettner.agent.domain.errors import JournalError

HEARTBEAT_S = 5.0  # limit for a revoked token's stream; proxies cut an idle one after 30 to 60 s
WRITE_TIMEOUT_S = 30.0  # a reader that stalls this long is disconnected
MOST_MISSED = 1000  # records that a stream replays; for more there is /v1/audit
STREAMS = 32  # open at once

Following = asyncio.Future[Mapping[str, object]]
Closing = asyncio.Task[Literal[True]]
log = structlog.get_logger(__name__)

CLOSING: web.AppKey[asyncio.Event] = web.AppKey("closing", asyncio.Event)
HEARTBEAT: web.AppKey[float] = web.AppKey("heartbeat_s", float)
OPEN: web.AppKey[set[object]] = web.AppKey("open", set)


async def _events(call: Call) -> web.StreamResponse:
    last = _last_seen(call.request)
    app = call.request.app
    if len(app[OPEN]) >= STREAMS:
        detail = f"{STREAMS} streams are open, the maximum; close one, or read /v1/audit instead."
        raise RequestRefusedError(503, detail, kind="too-many-streams", headers={"Retry-After": "30"})
    stream = _Stream(call, last)
    app[OPEN].add(stream)
    try:
        return await stream.run()
    finally:
        app[OPEN].discard(stream)


def _last_seen(request: web.Request) -> int | None:
    sent = request.headers.get("Last-Event-ID")
    if sent is None or not sent:
        return None
    if not (sent.isascii() and sent.isdigit() and int(sent[:20]) <= 2**53):
        raise RequestRefusedError(
            422, "Last-Event-ID must be the `id` of an event of this stream: a whole number."
        )
    return int(sent[:20])


class _RevokedError(Exception):
    """The caller of a stream lost its rights, or they changed."""


class _Stream:
    """One reader. The records between its last event and the newest are read from the journal, so that none
    is missed or sent twice between the replay and the live events.

    The replay runs a slice at a time within the reader's rate limit. A reader that is too far behind, or has
    seen entries that this journal does not have, receives the event `reset`.
    """

    def __init__(self, call: Call, last: int | None) -> None:
        self._call = call
        self._access_control = call.request.app[ACCESS_CONTROL]
        self._last = last  # None: from now on
        self._behind = last is not None  # there may be entries between the last event and the newest
        self._unpaid = 0  # bytes
        self._response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        )

    async def run(self) -> web.StreamResponse:
        records = self._call.daemon.follow()
        following = asyncio.ensure_future(anext(records))
        closing = asyncio.ensure_future(self._call.request.app[CLOSING].wait())
        try:
            await self._response.prepare(self._call.request)
            await asyncio.sleep(0)  # one turn of the loop: subscribe before the replay
            await self._send("retry: 2000\n\n")
            while not closing.done() and await self._is_authorised():
                if self._behind:
                    await self._catch_up()
                elif await self._wait_for_record(following, closing):
                    await self._forward(following.result())
                    following = asyncio.ensure_future(anext(records))
                await self._pay(closing)
        except (ConnectionError, TimeoutError, StopAsyncIteration, _RevokedError):
            pass  # the reader disconnected or lost its rights, or the journal is closed; a reader resumes
            # with Last-Event-ID
        except JournalError as error:
            log.warning("api.stream_ended", why=str(error))
        finally:
            await _end(following, closing, records)
        return self._response

    async def _is_authorised(self) -> bool:
        """Whether the caller still has the rights with which it opened the stream."""
        try:
            return await self._access_control.holder(self._call.request) == self._call.holder
        except ReviewError:  # the reader may resume with Last-Event-ID
            return False

    async def _wait_for_record(self, following: Following, closing: Closing) -> bool:
        """Wait for a new record; without one, send a heartbeat and check the journal."""
        beat_s = self._call.request.app[HEARTBEAT]
        either: set[asyncio.Future[Any]] = {following, closing}
        await asyncio.wait(either, timeout=beat_s, return_when=asyncio.FIRST_COMPLETED)
        if not following.done() and not closing.done():
            await self._send(": nothing new\n\n")
            self._behind = self._last is not None
        return following.done()

    async def _forward(self, record: Mapping[str, object]) -> None:
        if self._last is None or seq_of(record) == self._last + 1:
            await self._event(record)
        elif seq_of(record) > self._last:
            self._behind = True

    async def _catch_up(self) -> None:
        """Send a slice of the missed records."""
        last, head = self._last or 0, int(self._call.daemon.counters()["audit_head_seq"])
        if not 0 <= head - last <= MOST_MISSED:
            self._last = last = head
            await self._send(f'event: reset\nid: {head}\ndata: {{"head":{head}}}\n\n')
        records = await read_slice(self._call, last, MOST_MISSED)
        for record in records:
            await self._event(record)
        self._behind = bool(records)

    async def _event(self, record: Mapping[str, object]) -> None:
        if not await self._is_authorised():
            raise _RevokedError
        self._last = seq_of(record)
        data = json.dumps(record, allow_nan=False, default=str, separators=(",", ":"))
        await self._send(f"id: {self._last}\ndata: {data}\n\n")

    async def _send(self, text: str) -> None:
        sent = text.encode()
        self._unpaid += len(sent)
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self._response.write(sent)

    async def _pay(self, closing: Closing) -> None:
        """Yield to the event loop, and wait until the rate limit allows more."""
        wait_s = 0.0
        if self._unpaid >= PIECE:
            wait_s, self._unpaid = self._access_control.charge(self._call.request, self._unpaid), 0
        await asyncio.sleep(0)
        if wait_s:
            await asyncio.wait({closing}, timeout=wait_s)


async def _end(
    following: Following,
    closing: Closing,
    records: AsyncIterator[Mapping[str, object]],
) -> None:
    following.cancel()
    closing.cancel()
    await asyncio.gather(following, closing, return_exceptions=True)
    close = getattr(records, "aclose", None)
    if close is not None:
        await close()


OPERATIONS = (
    Operation(
        name="followAudit",
        method="GET",
        path="/v1/events",
        role="viewer",
        summary="New audit records as server-sent events; with Last-Event-ID missed records come first, "
        f"or, for more than {MOST_MISSED} records or those of another journal, an event `reset`",
        handler=_events,
        response=str,
        media="text/event-stream",
        request_headers={"Last-Event-ID": "`id` of the last event received"},
        errors={503: "Too many streams are open."},
    ),
)
