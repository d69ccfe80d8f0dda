"""The end of each step: the computed time with noise, faults and hiccups, on a card that others may use."""

from collections.abc import Callable, Iterator
from math import inf
from random import Random

from flettner.simulator.card import Card
from flettner.simulator.faults import Faults
from flettner.simulator.step_time import StepParts, StepWork

Hiccups = tuple[float, float]
"""Mean seconds from one to the next, and the length of each in seconds."""


class Pace:
    """`speed` divides the step times; `jitter` is the sigma of lognormal noise. Times in seconds.

    `card`: the GPU that the server uses under the name `server`, alone unless another one is put here.
    """

    def __init__(
        self,
        split: Callable[[StepWork], StepParts],
        random: Random,
        *,
        speed: float = 1.0,
        jitter: float = 0.0,
        faults: Faults | None = None,
        hiccups: Hiccups | None = None,
    ) -> None:
        self._split = split
        self.card, self.server = Card(), ""
        self._random = random
        self._speed = speed
        self._jitter = jitter
        self._faults = faults or Faults()
        self._hiccups = hiccups
        self._pauses: Iterator[tuple[float, float]] = iter(())
        self._pause: tuple[float, float] | None = None if hiccups else (inf, inf)

    def ends_s(self, work: StepWork, starts_s: float, *, since_s: float) -> float:
        """Return the end of a step that starts then; inf: never. `since_s`: first use of the server."""
        noise = self._random.lognormvariate(0.0, self._jitter) if self._jitter else 1.0
        pace = self._faults.pace(work, starts_s - since_s)
        self.card.take(self.server)
        seconds = self._split(work).seconds(self.card.slowdown(self.server))
        ends_s = self._after_hiccups(starts_s, starts_s + seconds * pace * noise / self._speed)
        return since_s + self._faults.ends_s(ends_s - since_s)

    def _after_hiccups(self, starts_s: float, ends_s: float) -> float:
        if self._pause is None:
            self._pauses = self._stops_from(starts_s)
            self._pause = next(self._pauses)
        while self._pause[1] <= starts_s:
            self._pause = next(self._pauses)
        while self._pause[0] < ends_s:
            ends_s += self._pause[1] - max(self._pause[0], starts_s)
            self._pause = next(self._pauses)
        return ends_s

    def _stops_from(self, at_s: float) -> Iterator[tuple[float, float]]:
        """Yield the start and end of each hiccup; independent of the noise of the steps between."""
        every_s, length_s = self._hiccups or (inf, 0.0)
        own = Random(self._random.random())  # noqa: S311 - simulation, not cryptography
        while True:
            at_s += own.expovariate(1 / every_s)
            yield at_s, at_s + length_s
            at_s += length_s
