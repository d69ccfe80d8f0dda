"""The state that the retirements of a target and the watches of its servers share.

The retirement of an old server may move its successor to the workload that people own. An exit of the
successor meanwhile is no loss; one that was reported before leaves nothing to move.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from flettner.actuators.kubernetes.discovery import ServerEntry, find_home


@dataclass(slots=True)
class Retirements:
    """`gone`: servers that were reported as gone."""

    gone: set[str] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _moving: str = ""
    _chosen: asyncio.Event = field(default_factory=asyncio.Event)  # `_moving` is known

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Retirements take turns, since one may change two servers."""
        async with self._turn:
            self._moving = ""
            self._chosen.clear()
            try:
                yield
            finally:
                self._chosen.set()

    def choose(
        self, server: str, servers: Mapping[str, ServerEntry]
    ) -> tuple[ServerEntry | None, ServerEntry | None, ServerEntry | None]:
        """Return the server, the server whose workload people own, and the successor that moves there."""
        entry = servers.get(server)
        successor = self._find_successor(server, servers) if entry else None
        home = find_home(entry, successor, servers) if entry else None
        self._moving = successor.server if home and successor else ""
        self._chosen.set()
        return entry, home, successor

    def _find_successor(self, server: str, servers: Mapping[str, ServerEntry]) -> ServerEntry | None:
        running = (new for new in servers.values() if new.active and new.server not in self.gone)
        return next((new for new in running if new.like == server), None)

    async def moves(self, server: str) -> bool:
        """Whether a retirement moves this server now, once it has chosen."""
        if self._turn.locked():
            await self._chosen.wait()
        return self._turn.locked() and self._moving == server

    async def wait(self) -> None:
        """Wait until the retirement that runs is over."""
        async with self._turn:
            pass
