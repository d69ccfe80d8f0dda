"""Is green measurably better? Asked once, at the end: what gains less than noise is not worth a change.

Compared are blue and green beside each other at equal load, and green in the hold-back with blue's record
under full load. Each comparison is the one-sided test of two proportions, unpooled, one bad and one good
request added to each arm (Agresti, Caffo 2000), with counts divided by their design effect:

    p = (bad + 1) / (of + 2)      z = (p_blue - p_green) / sqrt(sum of p (1 - p) / (of + 2))

The record is of another time, and the design effect knows nothing of time: where all latencies move by a
fifth from minute to minute, 38 of 100 equal greens were called better by such a comparison. So there only
half as many bad ones count.

Ten comparisons at most, so each is asked at 0.05 / 10 (Bonferroni): z >= 2.58. A latency is read above blue's
own median, where a difference shows with the fewest requests, and above what the SLO promises.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import sqrt

from agent.arm import Arm, over, quantile
from agent.judge.streams import LATENCIES, learned, objective_of, phi_of
from agent.judge.words import BAD_ONES, duration
from agent.model import Slo
from agent.trial import Trial

SURE = 2.58
LEAST = 10
ANOTHER_TIME = 0.5  # of the record's share of bad ones, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    what: str
    of: int
    bad: int
    blue_of: int
    blue_bad: int
    phi: float

    @property
    def z(self) -> float:
        n, m = self.of / self.phi + 2, self.blue_of / self.phi + 2
        p, q = (self.bad / self.phi + 1) / n, (self.blue_bad / self.phi + 1) / m
        return (q - p) / sqrt(p * (1 - p) / n + q * (1 - q) / m)

    def at_most(self, times: float) -> bool:
        """Green's share of bad ones is at most so many times blue's."""
        return self.bad * self.blue_of <= times * self.blue_bad * self.of

    def __str__(self) -> str:
        return (
            f"requests {self.what}: {self.bad / self.of:.1%} of green's {self.of:,}, "
            f"{self.blue_bad / self.blue_of:.1%} of blue's {self.blue_of:,}"
        )


def gain(trial: Trial, *, slo: Slo, level: tuple[Arm, Arm], green: Arm, record: Arm) -> str:
    """What green is better at, the surest first; "" when at nothing that can be told from noise."""
    found = [
        better
        for one, other, times in ((*level, 1.0), (green, record, ANOTHER_TIME))
        for better in _compared(trial, slo, one, other)
        if min(better.of, better.blue_of) >= LEAST and better.z >= SURE and better.at_most(times)
    ]
    if not found:
        return ""
    return f"better: {max(found, key=lambda better: better.z)}"


def _compared(trial: Trial, slo: Slo, green: Arm, blue: Arm) -> Iterator[Better]:
    promised = [name for name in LATENCIES if objective_of(slo, name) is not None]

    def better(what: str, streams: Iterable[str], mine: tuple[int, int], theirs: tuple[int, int]) -> Better:
        (bad, of), (blue_bad, blue_of) = mine, theirs
        phi = max(phi_of(learned(trial.calibration, name, slo)) for name in streams)
        return Better(what=what, of=of, bad=bad, blue_of=blue_of, blue_bad=blue_bad, phi=phi)

    missed, blue_missed = green.errors + green.late, blue.errors + blue.late
    if promised:
        yield better(
            "that miss the SLO", ("errors", *promised), (missed, green.total), (blue_missed, blue.total)
        )
    yield better(BAD_ONES["errors"], ("errors",), (green.errors, green.total), (blue.errors, blue.total))
    for name in LATENCIES:
        mine, theirs = getattr(green, name), getattr(blue, name)
        edge_s = quantile(theirs, 0.5)
        if edge_s is not None:
            what = BAD_ONES[name].format(edge=duration(edge_s))
            yield better(what, (name,), over(mine, edge_s), over(theirs, edge_s))
