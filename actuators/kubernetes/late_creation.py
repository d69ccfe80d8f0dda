"""Removes what the API server creates for a start that was given up.

A request that was not answered in time, or was cancelled, may be performed later: the API server works on it
for as long as its --request-timeout, a minute by default. What it then creates holds GPUs, and no one asks
for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from flettner.agent.domain.errors import ActError

WAITS_S = (5.0, 10.0, 15.0, 30.0, 60.0, 60.0)
"""Before each removal: three minutes in all, three times the API server's time-out."""


@dataclass(slots=True)
class LateCreations:
    """`remove`: removes the objects of the server with this name, if there are any. It may raise ActError."""

    remove: Callable[[str], Awaitable[None]]
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def expect(self, name: str) -> None:
        """The start of a new server was given up: remove what is still created for it."""
        self.forget(name)
        self._tasks[name] = asyncio.create_task(self._remove_late(name), name=f"late creation of {name}")

    def forget(self, name: str) -> None:
        """The server is started again."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def _remove_late(self, name: str) -> None:
        for wait_s in WAITS_S:
            await asyncio.sleep(wait_s)
            with suppress(ActError):  # the API server is away, or another daemon acts
                await self.remove(name)
        self._tasks.pop(name, None)
