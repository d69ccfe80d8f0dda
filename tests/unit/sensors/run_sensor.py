"""Run a sensor with a view of servers and collect its samples."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from flettner.agent.domain.model import Server, Slo
from flettner.agent.domain.ports import Now, Sensor
from flettner.agent.domain.reading import Sample, SourceState

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DEADLINE_S = 60.0

Kind = TypeVar("Kind")


@dataclass
class Fleet:
    """A view whose servers the test adds and removes."""

    addresses: dict[str, str] = field(default_factory=dict)
    target: str = "chat"
    state_dir: Path = Path()
    slo: Slo = field(default_factory=Slo)

    def servers(self) -> tuple[Server, ...]:
        return tuple(
            Server(name=name, setting={}, address=address) for name, address in self.addresses.items()
        )


@dataclass
class ReceivedSamples:
    """All emitted samples, in order."""

    samples: list[Sample] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Task[None] | None = None

    def __call__(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.news.set()

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [sample for sample in self.samples if isinstance(sample, kind)]

    def states(self) -> list[SourceState]:
        return self.of(SourceState)

    async def until(self, seen: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not seen():
                assert self.running is None or not self.running.done(), self.running
                self.news.clear()
                await self.news.wait()

    async def next(self, kind: type[Kind]) -> Kind:
        """Return the next emitted sample."""
        before = len(self.of(kind))
        await self.until(lambda: len(self.of(kind)) > before)
        return self.of(kind)[before]


@asynccontextmanager
async def run_sensor(
    sensor: Sensor, fleet: Fleet | None = None, now: Now = lambda: NOON
) -> AsyncIterator[ReceivedSamples]:
    """Run the sensor; an error in it fails the test."""
    received = ReceivedSamples()
    running = asyncio.create_task(sensor.run(fleet or Fleet(), received, now))
    running.add_done_callback(lambda _: received.news.set())
    received.running = running
    try:
        yield received
        assert not running.done(), running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
