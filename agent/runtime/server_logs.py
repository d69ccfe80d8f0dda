"""The last lines of servers' logs, for whoever looks: however many ask, each log is read once at a time."""

import asyncio
from dataclasses import dataclass, field

from agent.domain.errors import ActError
from agent.domain.model import Server
from agent.domain.ports import Engine

FRESH_S = 1.0  # so long what was read serves all who ask
LONGEST_S = 5.0  # that anybody is kept waiting

Lines = tuple[str, ...]


@dataclass(slots=True)
class ServerLogs:
    """Of one target's servers. A reading that hangs is left to itself, and no other of that log is begun."""

    engine: Engine
    _readings: dict[str, tuple[float, asyncio.Task[Lines]]] = field(default_factory=dict)  # since when

    async def of(self, server: Server) -> Lines:
        """Raises ActError when it cannot be read, or not within LONGEST_S."""
        reading = self._reading(server)
        await asyncio.wait({reading}, timeout=LONGEST_S)
        if not reading.done():
            raise ActError(f"the log of {server.name} was not there within {LONGEST_S:g} s")
        return reading.result()

    def _reading(self, server: Server) -> asyncio.Task[Lines]:
        now = asyncio.get_running_loop().time()
        for name, (since, task) in list(self._readings.items()):
            if task.done() and now - since >= FRESH_S:
                del self._readings[name]
        if server.name not in self._readings:
            task = asyncio.create_task(self.engine.log(server), name=f"log of {server.name}")
            task.add_done_callback(_heard)
            self._readings[server.name] = (now, task)
        return self._readings[server.name][1]


def _heard(reading: asyncio.Task[Lines]) -> None:
    """Nobody may have waited for its failure."""
    if not reading.cancelled():
        reading.exception()
