"""Request counts from vLLM's own metrics, where the traffic goes through a proxy that counts none. Pure.

The engine sees no request that failed before it: refused connections, errors of the gateway, requests that
were lost on the way. Its histograms do not show which request was late in what: those that miss different
objectives count as the same ones, on both sides alike. A limit inside a bucket counts as its upper edge.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from agent.domain.model import Objective, Slo
from agent.domain.reading import Buckets, EngineSample
from agent.domain.request_counts import EDGES_S, EMPTY, RequestCounts

_NOT_OK: Final = ("abort", "error")  # finished_reason; a client that disconnects is in none
_LATENCIES: Final = ("ttft", "itl", "e2e")


@dataclass(slots=True)
class EngineCounter:
    """One server. A first token and the end of its request come in different seconds: sums are compared."""

    answered: int = 0
    over: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LATENCIES, 0))
    late: int = 0

    def count(self, sample: EngineSample, slo: Slo, *, gaps_only: bool = False) -> RequestCounts:
        """Return the counts of one scrape. `gaps_only`: records of requests have all but the gaps."""
        if gaps_only:
            gaps, slow = _spread(sample.gaps, slo.itl)
            return RequestCounts(itl=gaps, over_itl=slow)
        ended = {reason: round(count) for reason, count in sample.finished.items()}
        answered = sum(count for reason, count in ended.items() if reason not in _NOT_OK)
        failed = ended.get("abort", 0) + max(ended.get("error", 0), round(sample.answered.get("5xx", 0)))
        found = {
            "ttft": _spread(sample.ttft, slo.ttft),
            "itl": _spread(sample.gaps, slo.itl),
            "e2e": _spread(sample.e2e, slo.e2e),
        }
        self.answered += answered
        for name, (_, over) in found.items():
            self.over[name] += over
        before, self.late = self.late, max(self.late, min(self.answered, max(self.over.values())))
        return RequestCounts(
            total=answered + failed,
            errors=failed,
            late=self.late - before,
            refused=round(sample.answered.get("4xx", 0)),
            over_ttft=found["ttft"][1],
            over_itl=found["itl"][1],
            over_e2e=found["e2e"][1],
            ttft=found["ttft"][0],
            itl=found["itl"][0],
            e2e=found["e2e"][0],
        )


def _spread(buckets: Buckets | None, objective: Objective | None) -> tuple[tuple[int, ...], int]:
    """The counts by EDGES_S, each at the upper edge of its bucket, and how many are above the objective."""
    if buckets is None or not buckets.total:
        return EMPTY, 0
    limit_s = objective.under_s if objective is not None else None
    counts, over = list(EMPTY), 0
    lows = (0.0, *buckets.edges)
    highs = (*buckets.edges, 2 * buckets.edges[-1] if buckets.edges else EDGES_S[-1])
    for low_s, high_s, count in zip(lows, highs, buckets.counts, strict=True):
        value_s = high_s
        if limit_s is not None and low_s < limit_s < high_s:
            value_s = limit_s
        counts[bisect_left(EDGES_S, value_s)] += round(count)
        over += round(count) if limit_s is not None and value_s > limit_s else 0
    return tuple(counts), over
