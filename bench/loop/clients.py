"""The clients of a world: arrivals, lengths and prefixes, the same for the same seed whatever serves them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from bench.loop.world import World
from flettner.simulator.scheduler import SimulatedRequest
from flettner.simulator.text import draws
from flettner.simulator.workload import gap_s

BLOCK = 16  # tokens; the block size of the hashes


@dataclass(frozen=True, slots=True)
class Coming:
    """One request. `place`, 0 to 100, chooses its server as Envoy does: uniform, new for each request."""

    request: SimulatedRequest
    place: float


@dataclass(slots=True)
class Clients:
    """Open loop: requests come when they come. Times in seconds; `since_s`: begin of the load."""

    world: World
    seed: int
    since_s: float = 0.0
    _coming: Iterator[Coming] = field(init=False)
    _next: Coming | None = field(init=False)

    def __post_init__(self) -> None:
        self._coming = self._all(draws(self.seed, "clients", self.world.name))
        self._next = next(self._coming, None)

    def until(self, at_s: float) -> Iterator[Coming]:
        """Return the requests up to that time, each once."""
        while self._next is not None and self._next.request.arrived_at < at_s:
            yield self._next
            self._next = next(self._coming, None)

    def _all(self, random: Random) -> Iterator[Coming]:
        began_s, count = 0.0, 0
        for phase in self.world.load:
            due_s, ends_s = began_s, began_s + phase.seconds
            while (due_s := due_s + gap_s(random, phase.rate, phase.cv)) < ends_s:
                count += 1
                yield Coming(self._one(random, count, due_s), random.uniform(0, 100))
            began_s = ends_s

    def _one(self, random: Random, number: int, at_s: float) -> SimulatedRequest:
        mix, shared = self.world.mix_at(at_s), self.world.shared_prefix
        prompt, wanted = shared + mix.prompt.draw(random), mix.output.draw(random)
        hashes = [(-1 - i if (i + 1) * BLOCK <= shared else number << 20 | i) for i in range(prompt // BLOCK)]
        return SimulatedRequest(
            name=f"{number}", prompt=prompt, wanted=wanted, hashes=hashes, arrived_at=self.since_s + at_s
        )
