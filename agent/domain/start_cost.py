"""What green cost the servers in force on the same card: measured, and expected."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

STARTING, BESIDE = 1.04, 2.1
"""How many times as long a token took on a recorded H100 while green started, and while both served; on an
H200 1.05 and 1.8."""
WARM_UP_S = 5.0
LIKELY, LIKELY_MORE_S = 1.25, 15.0  # nine of ten starts: a start of the same kind took 74 to 87 s on the H100


class Speed(NamedTuple):
    """Sums over seconds: tokens, and sequences that ran. Their ratio does not depend on the load."""

    tokens: float
    running: float

    def plus(self, other: "Speed", *, keep: float = 1.0) -> "Speed":
        """`keep`: the part of this sum that counts on."""
        tokens, running = keep * self.tokens + other.tokens, keep * self.running + other.running
        return Speed(round(tokens, 1), round(running, 1))

    def slowdown_to(self, now: "Speed") -> float | None:
        """How many times as long a token takes now; None without tokens of both."""
        if not (self.tokens and self.running and now.tokens and now.running):
            return None
        return round((self.tokens / self.running) / (now.tokens / now.running), 3)


UNKNOWN_SPEED = Speed(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StartCost:
    """How many times as long a token of blue's took; None: not measured."""

    starting: float | None  # while green started
    beside: float | None = None  # while both served


def expected_cost(costs: Sequence[StartCost]) -> StartCost:
    """The mean of the measured ones and of the recorded GPU's, which counts as one measurement."""
    starting = [cost.starting for cost in costs if cost.starting is not None]
    beside = [cost.beside for cost in costs if cost.beside is not None]
    return StartCost(
        max(1.0, (STARTING + sum(starting)) / (1 + len(starting))),
        max(1.0, (BESIDE + sum(beside)) / (1 + len(beside))),
    )
