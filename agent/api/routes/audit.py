"""The audit journal by page. A page is sent while it is read, so that a large one needs no memory."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from flettner.agent.api.middleware import ACCESS_CONTROL, sending
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.rate_limits import PIECE

PAGE_BYTES = 16 * PIECE
"""Of the journal in one page, or a single larger record."""
BULK = frozenset({"state", "effects"})
READING: web.AppKey[asyncio.Lock] = web.AppKey("reading", asyncio.Lock)


class AuditQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: int = Field(default=0, ge=0, le=2**53)
    limit: int = Field(
        default=100, ge=1, le=1000, description="a page has fewer after 1 MiB of the journal; follow `next`"
    )
    brief: bool = Field(default=False, description="without `state` and `effects`, the bulk of a record")


class AuditDocument(BaseModel):
    records: list[dict[str, Any]] = Field(
        description="in order, each with its `seq`; at least one, unless there is none after `after`"
    )
    next: int = Field(description="the `after` that gives what comes next")


async def read_slice(call: Call, after: int, limit: int) -> Sequence[Mapping[str, object]]:
    """Read the next records; all callers together read one slice in a turn of the event loop.

    Raises JournalError.
    """
    async with call.request.app[READING]:
        records = call.daemon.records(after, limit)
        await asyncio.sleep(0)
    return records


def seq_of(record: Mapping[str, object]) -> int:
    seq = record["seq"]
    if not isinstance(seq, int):
        raise TypeError(f"an audit record without a whole number as its seq: {seq!r}")
    return seq


async def _list(call: Call) -> web.StreamResponse:
    """Send a page. The caller pays for the largest page before any of it is read; the rest is paid back."""
    access_control = call.request.app[ACCESS_CONTROL]
    access_control.charge(call.request, PAGE_BYTES)
    page = _Page(call)
    try:
        async with sending(call.request):
            await page.send()
    finally:
        access_control.charge(call.request, page.cost - PAGE_BYTES)
    return page.response


class _Page:
    """One page: `cost` is what is read and sent so far, in bytes of the rate limit."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._query = call.parsed_as(AuditQuery)
        self.cost = 0
        self.response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})

    async def send(self) -> None:
        before, last, left = b'{"records":[', self._query.after, self._query.limit
        while left and self.cost < PAGE_BYTES:
            records = await read_slice(self._call, last, left)
            if not records:
                break
            text = b",".join(to_json(self._shown(record)) for record in records)
            self.cost += max(len(text), PIECE)
            await self._write(before + text)
            before, last, left = b",", seq_of(records[-1]), left - len(records)
        end = b'],"next":%d}' % last
        await self._write(end if self.response.prepared else before + end)
        await self.response.write_eof()

    def _shown(self, record: Mapping[str, object]) -> Mapping[str, object]:
        if not self._query.brief:
            return record
        return {name: value for name, value in record.items() if name not in BULK}

    async def _write(self, text: bytes) -> None:
        if not self.response.prepared:  # after the first read, so that an unreadable journal is a 503
            await self.response.prepare(self._call.request)
        await self.response.write(text)


OPERATIONS = (
    Operation(
        name="listAudit",
        method="GET",
        path="/v1/audit",
        role="viewer",
        summary="Audit records after `after`, in order; a page ends early after 1 MiB of the journal",
        handler=_list,
        response=AuditDocument,
        query=AuditQuery,
        errors={503: "The audit journal cannot be read."},
    ),
)
