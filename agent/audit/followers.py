"""Readers that wait for the next entries of the journal, each in its own event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from flettner.agent.audit.offsets import SLICE_BYTES, STRIDE
from flettner.agent.audit.records import JournalRecord

ReadAfter = Callable[[int, int, int], Sequence[JournalRecord]]
"""Reads the entries after a seq, at most so many, up to the one that reaches so many bytes."""


@dataclass(slots=True)
class Followers:
    _waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = field(default_factory=set)

    async def follow(self, seen: int, read: ReadAfter) -> AsyncIterator[JournalRecord]:
        """Yield every entry after seq `seen`, until the iterator is closed."""
        appended = asyncio.Event()
        follower = (asyncio.get_running_loop(), appended)
        self._waiting.add(follower)
        try:
            while True:
                appended.clear()
                for record in read(seen, STRIDE, SLICE_BYTES):
                    appended.set()  # more may follow
                    seen = record["seq"]
                    yield record
                await appended.wait()
        finally:
            self._waiting.discard(follower)

    def notify(self) -> None:
        for loop, appended in tuple(self._waiting):  # a copy: other threads add and remove followers
            with suppress(RuntimeError):  # its loop was closed before the iterator
                loop.call_soon_threadsafe(appended.set)
