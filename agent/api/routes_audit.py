"""The audit journal, by page and as a stream of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from agent.api.border import Border
from agent.api.desk import Desk
from agent.api.operations import Call, Operation
from agent.api.problems import Refusal
from agent.errors import JournalError

HEARTBEAT_S = 5.0  # a revoked token ends its stream by then; proxies cut a silent one after 30 to 60 s
WRITE_TIMEOUT_S = 30.0  # a reader that takes nothing for so long is gone
PAGE = 500  # records
BULK = frozenset({"state", "effects"})
STREAMS = 32  # open at once

log = structlog.get_logger(__name__)

BORDER: web.AppKey[Border] = web.AppKey("border", Border)
CLOSING: web.AppKey[asyncio.Event] = web.AppKey("closing", asyncio.Event)
HEARTBEAT: web.AppKey[float] = web.AppKey("heartbeat_s", float)
OPEN: web.AppKey[set[object]] = web.AppKey("open", set)


class AuditQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: int = Field(default=0, ge=0, le=2**53)
    limit: int = Field(default=100, ge=1, le=1000)
    brief: bool = Field(default=False, description="without `state` and `effects`, the bulk of a record")


class AuditDocument(BaseModel):
    records: list[dict[str, Any]] = Field(description="in order, each with its `seq`")
    next: int = Field(description="the `after` that gives what comes next")


async def _list(call: Call) -> AuditDocument:
    query = call.asked(AuditQuery)
    bulk = BULK if query.brief else frozenset()
    records = [
        {name: value for name, value in record.items() if name not in bulk}
        for record in call.desk.records(query.after, query.limit)
    ]
    return AuditDocument(records=records, next=_seq(records[-1]) if records else query.after)


async def _events(call: Call) -> web.StreamResponse:
    last = _last_seen(call.request)
    app = call.request.app
    if len(app[OPEN]) >= STREAMS:
        detail = f"{STREAMS} streams are open, no more are kept; close one, or read /v1/audit instead."
        raise Refusal(503, detail, kind="too-many-streams", headers={"Retry-After": "30"})
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
        raise Refusal(422, "Last-Event-ID must be the `id` of an event of this stream: a whole number.")
    return int(sent[:20])


def _seq(record: Mapping[str, object]) -> int:
    seq = record["seq"]
    if not isinstance(seq, int):
        raise TypeError(f"an audit record without a whole number as its seq: {seq!r}")
    return seq


class _Stream:
    """One reader. The journal is read for what lies between its last event and the newest, so that nothing
    is missed or sent twice whatever happens between looking back and following."""

    def __init__(self, call: Call, last: int | None) -> None:
        self._call = call
        self._last = last  # None: from now on
        self._response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        )

    async def run(self) -> web.StreamResponse:
        desk, app = self._call.desk, self._call.request.app
        records = desk.follow()
        following = asyncio.ensure_future(anext(records))
        closing = asyncio.ensure_future(app[CLOSING].wait())
        try:
            await self._response.prepare(self._call.request)
            await asyncio.sleep(0)  # one turn of the loop: we are subscribed before we look back
            await self._send("retry: 2000\n\n")
            await self._catch_up(desk)
            while True:
                await asyncio.wait(
                    {following, closing}, timeout=app[HEARTBEAT], return_when=asyncio.FIRST_COMPLETED
                )
                if closing.done() or app[BORDER].holder(self._call.request) is None:
                    break  # the daemon stops, or the token was revoked or has expired
                if following.done():
                    await self._pass_on(desk, following.result())
                    following = asyncio.ensure_future(anext(records))
                else:
                    await self._catch_up(desk)
                    await self._send(": nothing new\n\n")
        except (ConnectionError, TimeoutError, StopAsyncIteration):
            pass  # the reader went away, or the journal is closed: it comes back with Last-Event-ID
        except JournalError as error:
            log.warning("api.stream_ended", why=str(error))
        finally:
            await _end(following, closing, records)
        return self._response

    async def _pass_on(self, desk: Desk, record: Mapping[str, object]) -> None:
        if self._last is None or _seq(record) == self._last + 1:
            await self._event(record)
        elif _seq(record) > self._last:
            await self._catch_up(desk)

    async def _catch_up(self, desk: Desk) -> None:
        while self._last is not None:
            records = desk.records(self._last, PAGE)
            if not records:
                return
            for record in records:
                await self._event(record)

    async def _event(self, record: Mapping[str, object]) -> None:
        self._last = _seq(record)
        data = json.dumps(record, allow_nan=False, default=str, separators=(",", ":"))
        await self._send(f"id: {self._last}\ndata: {data}\n\n")

    async def _send(self, text: str) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self._response.write(text.encode())


async def _end(
    following: "asyncio.Future[Mapping[str, object]]",
    closing: "asyncio.Task[Literal[True]]",
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
        name="listAudit",
        method="GET",
        path="/v1/audit",
        role="viewer",
        summary="Audit records after `after`, in order",
        answer=_list,
        gives=AuditDocument,
        query=AuditQuery,
        refuses={503: "The audit journal cannot be read."},
    ),
    Operation(
        name="followAudit",
        method="GET",
        path="/v1/events",
        role="viewer",
        summary="New audit records as server-sent events; with Last-Event-ID what was missed comes first",
        answer=_events,
        gives=str,
        media="text/event-stream",
        takes={"Last-Event-ID": "`id` of the last event that was seen"},
        refuses={503: "Too many streams are open."},
    ),
)
