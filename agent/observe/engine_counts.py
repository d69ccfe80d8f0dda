"""Request counts from vLLM's own metrics, where the traffic goes through a proxy that counts none. Pure.

The engine sees no request that failed before it: refused connections, errors of the gateway, requests that
were lost on the way. Its histograms do not show which request was late in what: those that miss different
objectives count as the same ones, on both sides alike.

Nor do they show how many requests of a bucket are above a limit inside it. A fixed part of them counts so,
which depends on the edges only: an equal green is equal, and a slower one has more of them. That part is what
a density of 1/t has there. With the bucket's upper edge as the limit a green passed whose latencies were 1.5
times blue's, where the limit is 1.1 s and the bucket ends at 2.5 s; with the lower edge one of 1.25 times,
where most of blue's requests are in the bucket (docs/judge.md).
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from math import floor, log
from typing import Final

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Buckets, EngineSample
from flettner.agent.domain.request_counts import EDGES_S, EMPTY, RequestCounts

_NOT_OK: Final = ("abort", "error")  # finished_reason; a client that disconnects is in none
_LATENCIES: Final = ("ttft", "itl", "e2e")


@dataclass(slots=True)
class EngineCounter:
    """One server. A first token and the end of its request come in different seconds: sums are compared."""

    answered: int = 0
    over: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LATENCIES, 0.0))
    late: int = 0

    def count(self, sample: EngineSample, slo: Slo, *, gaps_only: bool = False) -> RequestCounts:
        """Return the counts of one scrape. `gaps_only`: records of requests have all but the gaps."""
        if gaps_only:
            return RequestCounts(
                itl=_spread(sample.gaps, slo.itl), over_itl=self._add_over("itl", sample, slo)
            )
        ended = {reason: round(count) for reason, count in sample.finished.items()}
        answered = sum(count for reason, count in ended.items() if reason not in _NOT_OK)
        failed = ended.get("abort", 0) + max(ended.get("error", 0), round(sample.answered.get("5xx", 0)))
        self.answered += answered
        over = {name: self._add_over(name, sample, slo) for name in _LATENCIES}
        worst = _whole(max(self.over.values()))
        before, self.late = self.late, max(self.late, min(self.answered, worst))
        return RequestCounts(
            total=answered + failed,
            errors=failed,
            late=self.late - before,
            refused=round(sample.answered.get("4xx", 0)),
            over_ttft=over["ttft"],
            over_itl=over["itl"],
            over_e2e=over["e2e"],
            ttft=_spread(sample.ttft, slo.ttft),
            itl=_spread(sample.gaps, slo.itl),
            e2e=_spread(sample.e2e, slo.e2e),
        )

    def _add_over(self, name: str, sample: EngineSample, slo: Slo) -> int:
        """Requests above the objective, in whole ones: the rest of a request waits for the next scrape."""
        buckets, objective = {
            "ttft": (sample.ttft, slo.ttft),
            "itl": (sample.gaps, slo.itl),
            "e2e": (sample.e2e, slo.e2e),
        }[name]
        before = self.over[name]
        if buckets is not None and objective is not None:
            self.over[name] += count_over(buckets, objective.under_s)
        return _whole(self.over[name]) - _whole(before)


def _whole(count: float) -> int:
    return floor(count + 1e-6)  # sums of parts are inexact


def count_over(buckets: Buckets, limit_s: float) -> float:
    """Requests above the limit; of the bucket around it, the part that a density of 1/t has above it."""
    return sum(
        count * _part_above(limit_s, low_s, high_s)
        for low_s, high_s, count in zip(*_bounds(buckets), buckets.counts, strict=True)
    )


def _part_above(limit_s: float, low_s: float, high_s: float) -> float:
    if limit_s <= low_s:
        return 1.0
    return log(high_s / limit_s) / log(high_s / low_s) if limit_s < high_s else 0.0


def _bounds(buckets: Buckets) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The edges below and above each bucket; the first and the last one span an octave."""
    edges = buckets.edges or (EDGES_S[-1],)
    return (edges[0] / 2, *buckets.edges), (*buckets.edges, 2 * edges[-1])


def _spread(buckets: Buckets | None, objective: Objective | None) -> tuple[int, ...]:
    """The counts by EDGES_S, each at the upper edge of its bucket, or at the limit inside it."""
    if buckets is None or not buckets.total:
        return EMPTY
    limit_s = objective.under_s if objective is not None else 0.0
    counts = list(EMPTY)
    for low_s, high_s, count in zip(*_bounds(buckets), buckets.counts, strict=True):
        value_s = limit_s if low_s < limit_s < high_s else high_s
        counts[bisect_left(EDGES_S, value_s)] += round(count)
    return tuple(counts)
