"""Reads of the audit journal for the API, in slices that keep the event loop free for other callers."""

import asyncio
from collections.abc import Mapping, Sequence

from aiohttp import web

from flettner.agent.api.operations import Call

READING: web.AppKey[asyncio.Lock] = web.AppKey("reading", asyncio.Lock)


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
