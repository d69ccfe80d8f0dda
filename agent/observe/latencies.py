"""The latencies of a window against their objectives: percentiles, late requests, and where their time went.

From the proxy's records if there are any, else from vLLM's histograms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Buckets, EngineSample, Latency, Reading, Request
from flettner.agent.domain.request_counts import meets_slo, token_gap_s
from flettner.agent.observe.attribution import (
    LateRequests,
    clumping,
    count_overdue,
    share_e2e,
    share_itl,
    share_ttft,
)
from flettner.agent.observe.window import summarize_histograms, summarize_latency
from flettner.primitives.quantiles import mean


class Record(NamedTuple):
    """A request in the window; its latencies are derived once, as each second summarizes all of them."""

    at_s: float  # when it ended, as a timestamp
    request: Request
    first_s: float | None  # its TTFT
    gap_s: float | None  # mean time between its tokens; both None where they do not count
    met: bool  # the SLO


def record_request(at: datetime, request: Request, slo: Slo) -> Record:
    """A stalled request counts in the TTFT with its age, once, as in `domain.request_counts`."""
    first_s = request.duration_s if request.outcome == "stalled" else request.ttft_s
    counts = request.outcome not in ("gave_up", "refused") and not request.stalled
    gap_s = token_gap_s(request) if request.outcome == "ok" else None
    return Record(at.timestamp(), request, first_s if counts else None, gap_s, meets_slo(request, slo))


@dataclass(frozen=True, slots=True)
class _Measured:
    """One latency of all requests of the window: its end (s from the start of the window) and its value."""

    values: Sequence[tuple[float, float]]
    histograms: Sequence[Buckets]
    objective: Objective | None

    def summarize(self, span_s: float) -> Latency | None:
        if not self.values:
            return summarize_histograms(self.histograms, self.objective)
        latency = summarize_latency([value for _, value in self.values], self.objective)
        if latency is None or self.objective is None or latency.over_slo in (0.0, 1.0):
            return latency
        late = [(at_s, value > self.objective.under_s) for at_s, value in self.values]
        return replace(latency, clumping=clumping(late, span_s))

    def late(self, duration_s: float | None) -> LateRequests:
        if self.objective is None:
            return LateRequests(0.0, 0.0, duration_s)
        under_s = self.objective.under_s
        if self.values:
            late = [value for _, value in self.values if value > under_s]
            return LateRequests(len(late), sum(late) / len(late) if late else 0.0, duration_s)
        count = total_s = 0.0
        for histogram in self.histograms:
            for (low, high), number in zip(
                pairwise((0.0, *histogram.edges, *histogram.edges[-1:])), histogram.counts, strict=False
            ):
                if low >= under_s or (high > under_s and number):
                    count += number
                    total_s += number * max(under_s, (low + high) / 2)
        return LateRequests(count, total_s / count if count else 0.0, duration_s)


def add_latencies(
    reading: Reading, samples: Sequence[EngineSample], records: Sequence[Record], slo: Slo
) -> Reading:
    """The reading with its latencies and the shares of the late requests' time."""
    since_s = reading.at.timestamp() - reading.span_s
    firsts = [(record.at_s - since_s, record.first_s) for record in records if record.first_s is not None]
    gaps = [(record.at_s - since_s, record.gap_s) for record in records if record.gap_s is not None]
    ends = [
        (record.at_s - since_s, record.request.duration_s)
        for record in records
        if record.request.outcome == "ok"
    ]
    ttft = _Measured(firsts, _present(sample.ttft for sample in samples), slo.ttft)
    itl = _Measured(gaps, _present(sample.itl for sample in samples), slo.itl)
    e2e = _Measured(ends, _present(sample.e2e for sample in samples), slo.e2e)
    duration_s = mean(value for _, value in ends)
    waiting = {
        name: count_overdue(samples, reading.work, objective)
        for name, objective in (("ttft", slo.ttft), ("e2e", slo.e2e))
    }
    span_s = reading.span_s
    return replace(
        reading,
        ttft=_with_overdue(ttft.summarize(span_s), waiting["ttft"]),
        itl=itl.summarize(span_s),
        e2e=_with_overdue(e2e.summarize(span_s), waiting["e2e"]),
        ttft_shares=share_ttft(samples, ttft.late(duration_s), waiting["ttft"]),
        itl_shares=share_itl(samples, itl.late(duration_s), reading.work, slo.itl) if slo.itl else None,
        e2e_shares=share_e2e(samples, e2e.late(duration_s), waiting["e2e"]),
    )


def _with_overdue(latency: Latency | None, overdue: float) -> Latency | None:
    """Where nothing ended yet, only the requests that wait are known."""
    if latency is None and overdue:
        return Latency(count=0.0, p50=0.0, p95=0.0, p99=0.0, over_slo=0.0, overdue=overdue)
    return None if latency is None else replace(latency, overdue=overdue)


def _present(histograms: Iterable[Buckets | None]) -> list[Buckets]:
    return [histogram for histogram in histograms if histogram is not None]
