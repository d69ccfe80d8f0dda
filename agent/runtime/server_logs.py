"""The last lines of servers' logs; concurrent requests for one log share a single read."""

import asyncio
from dataclasses import dataclass, field

from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Engine

FRESH_S = 1.0  # for which a read is reused
LONGEST_S = 5.0  # for which a request waits

Lines = tuple[str, ...]


@dataclass(slots=True)
class ServerLogs:
    """Logs of one target's servers. While a read hangs, no other read of that log starts."""

    engine: Engine
    _readings: dict[str, tuple[float, asyncio.Task[Lines]]] = field(default_factory=dict)  # start time, task

    async def read(self, server: Server) -> Lines:
        """Read the log. Raises ActError if this fails or takes more than LONGEST_S."""
        reading = self._start_read(server)
        await asyncio.wait({reading}, timeout=LONGEST_S)
        if not reading.done():
            raise ActError(f"reading the log of {server.name} takes more than {LONGEST_S:g} s")
        return reading.result()

    def _start_read(self, server: Server) -> asyncio.Task[Lines]:
        now = asyncio.get_running_loop().time()
        for name, (since, task) in list(self._readings.items()):
            if task.done() and now - since >= FRESH_S:
                del self._readings[name]
        if server.name not in self._readings:
            task = asyncio.create_task(self.engine.log(server), name=f"log of {server.name}")
            task.add_done_callback(_ignore_failure)
            self._readings[server.name] = (now, task)
        return self._readings[server.name][1]


def _ignore_failure(reading: asyncio.Task[Lines]) -> None:
    """Retrieve the exception, for which no request may wait any more."""
    if not reading.cancelled():
        reading.exception()
