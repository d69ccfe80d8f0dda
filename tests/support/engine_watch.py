"""The watch of a server by an engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Engine


def noon() -> datetime:
    return datetime(2025, 11, 21, 12, tzinfo=UTC)


@asynccontextmanager
async def watched(engine: Engine, server: Server) -> AsyncIterator[list[ServerLost]]:
    """The reports of the watch from its first probe on."""
    reports: list[ServerLost] = []
    watch = asyncio.create_task(engine.watch(server, reports.append, noon))
    await asyncio.sleep(0.5)
    try:
        yield reports
    finally:
        watch.cancel()
        await asyncio.wait([watch])
