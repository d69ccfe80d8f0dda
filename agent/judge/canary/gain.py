"""Is green measurably better? Tested once, at the end: a gain below the noise is not worth a change.

Blue and green are compared at equal load and at the same time. Each comparison is the one-sided test of two
proportions, unpooled, one bad and one good request added to each arm (Agresti, Caffo 2000), with counts
divided by their design effect:

    p = (bad + 1) / (of + 2)      z = (p_blue - p_green - m) / sqrt(sum of p (1 - p) / (of + 2))

m, the least improvement, is 0 where the design effect is known. For a latency without an objective it is not
known, and m is the margin that also rolls green back: without it 14 of 100 equal greens counted as better
where servers stall for 45 s.

At most six comparisons, each tested at 0.05 / 10 (Bonferroni, with a reserve): z >= 2.58. A latency is
compared above blue's own median, where a difference shows with the fewest requests, and above the SLO's
objective.

A green that replaced the only server never ran at the same time as blue and is compared with blue's baseline.
The design effect does not cover changes over time: where all latencies move by a fifth from minute to minute,
such comparisons found 10 of 100 equal greens better. So there only failures and missed SLOs are compared,
green must have at most half of blue's bad share, and m is twice the margin.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import sqrt

from flettner.agent.domain.canary_evidence import CanaryEvidence
from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import RequestCounts, count_above, quantile
from flettner.agent.judge.failure_modes import DISASTER, LATENCIES, calibration_of, objective_of, phi_of
from flettner.agent.judge.wording import BAD_ONES, describe_duration

SURE = 2.58
LEAST = 10
OF_BASELINE = 0.5  # of the baseline's bad share, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    what: str
    of: int
    bad: int
    blue_of: int
    blue_bad: int
    phi: float
    least: float  # m

    @property
    def z(self) -> float:
        n, m = self.of / self.phi + 2, self.blue_of / self.phi + 2
        p, q = (self.bad / self.phi + 1) / n, (self.blue_bad / self.phi + 1) / m
        return (q - p - self.least) / sqrt(p * (1 - p) / n + q * (1 - q) / m)

    def at_most(self, times: float) -> bool:
        """Whether green's bad share is at most `times` blue's."""
        return self.bad * self.blue_of <= times * self.blue_bad * self.of

    def __str__(self) -> str:
        return (
            f"requests {self.what}: {self.bad / self.of:.1%} of green's {self.of:,}, "
            f"{self.blue_bad / self.blue_of:.1%} of blue's {self.blue_of:,}"
        )


def describe_gain(
    evidence: CanaryEvidence,
    *,
    slo: Slo,
    level: tuple[RequestCounts, RequestCounts],
    green: RequestCounts,
    baseline: RequestCounts,
) -> str:
    """The most significant improvement; "" if none can be distinguished from noise."""
    beside = bool(level[0].total and level[1].total)
    mine, theirs = level if beside else (green, baseline)
    gains = [
        better
        for better in _comparisons(evidence, slo, mine, theirs, beside=beside)
        if min(better.of, better.blue_of) >= LEAST
        and better.z >= SURE
        and (beside or better.at_most(OF_BASELINE))
    ]
    if not gains:
        return ""
    return f"better: {max(gains, key=lambda better: better.z)}"


def _least(evidence: CanaryEvidence, slo: Slo, name: str, *, beside: bool) -> float:
    unknown = name in LATENCIES and objective_of(slo, name) is None
    opened = (stream.margin for stream in evidence.streams if stream.name == name)
    margin = next(opened, DISASTER if unknown else evidence.margin / 2)
    return 2 * margin if not beside else margin if unknown else 0.0


def _comparisons(
    evidence: CanaryEvidence, slo: Slo, green: RequestCounts, blue: RequestCounts, *, beside: bool
) -> Iterator[Gain]:
    promised = [name for name in LATENCIES if objective_of(slo, name) is not None]

    def better(what: str, streams: Iterable[str], green: tuple[int, int], blue: tuple[int, int]) -> Gain:
        (bad, of), (blue_bad, blue_of) = green, blue
        names = tuple(streams)
        phi = max(phi_of(calibration_of(evidence.calibration, name, slo)) for name in names)
        least = max(_least(evidence, slo, name, beside=beside) for name in names)
        return Gain(what=what, of=of, bad=bad, blue_of=blue_of, blue_bad=blue_bad, phi=phi, least=least)

    if promised:
        mine, theirs = (green.missed, green.served), (blue.missed, blue.served)
        yield better("that miss the SLO", ("errors", "stalled", *promised), mine, theirs)
    yield better(BAD_ONES["errors"], ("errors",), (green.errors, green.total), (blue.errors, blue.total))
    mine, theirs = (green.stalled, green.served), (blue.stalled, blue.served)
    yield better(BAD_ONES["stalled"], ("stalled",), mine, theirs)
    for name in LATENCIES if beside else ():
        histogram, control = getattr(green, name), getattr(blue, name)
        edge_s = quantile(control, 0.5)
        if edge_s is not None:
            what = BAD_ONES[name].format(edge=describe_duration(edge_s))
            yield better(what, (name,), count_above(histogram, edge_s), count_above(control, edge_s))
