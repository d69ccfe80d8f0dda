"""The clients of a world: arrivals, lengths and prefixes, the same for the same seed whatever serves them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from bench.loop.world import World
from bench.virtual_site import Arrival, new_request
from flettner.simulator.text import draws
from flettner.simulator.workload import gap_s


@dataclass(slots=True)
class Clients:
    """Draw the requests of an open loop, each with a place that chooses its server. Times in seconds.

    `since_s`: begin of the load.
    """

    world: World
    seed: int
    since_s: float = 0.0
    _arrivals: Iterator[Arrival] = field(init=False)
    _next: Arrival | None = field(init=False)

    def __post_init__(self) -> None:
        self._arrivals = self._draw_all(draws(self.seed, "clients", self.world.name))
        self._next = next(self._arrivals, None)

    def until(self, at_s: float) -> Iterator[Arrival]:
        """Return the requests up to that time, each once."""
        while self._next is not None and self._next.request.arrived_at < at_s:
            yield self._next
            self._next = next(self._arrivals, None)

    def _draw_all(self, random: Random) -> Iterator[Arrival]:
        began_s, count = 0.0, 0
        for phase in self.world.load:
            due_s, ends_s = began_s, began_s + phase.seconds
            while (due_s := due_s + gap_s(random, phase.rate, phase.cv)) < ends_s:
                count += 1
                mix, shared = self.world.mix_at(due_s), self.world.shared_prefix
                prompt, output = shared + mix.prompt.draw(random), mix.output.draw(random)
                request = new_request(
                    count, self.since_s + due_s, prompt=prompt, output=output, shared=shared, group=count
                )
                yield Arrival(request, random.uniform(0, 100))
            began_s = ends_s
