"""The latencies of a window against their objectives: percentiles, late requests, and where their time went.

From the proxy's records if there are any, else from vLLM's histograms.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    gap_s: float | None  # mean time between its tokens
    whole_s: float | None  # its duration; all three None where they do not count
    met: bool  # the SLO


def record_request(at: datetime, request: Request, slo: Slo) -> Record:
    """A stalled request counts in the TTFT with its age, once, as in `domain.request_counts`."""
    first_s = request.duration_s if request.outcome == "stalled" else request.ttft_s
    counts = request.outcome not in ("gave_up", "refused") and not request.stalled
    is_whole = request.outcome == "ok"
    return Record(
        at_s=at.timestamp(),
        request=request,
        first_s=first_s if counts else None,
        gap_s=token_gap_s(request) if is_whole else None,
        whole_s=request.duration_s if is_whole else None,
        met=meets_slo(request, slo),
    )


class _Measured:
    """One latency of all requests of the window: (end as a timestamp, seconds) of each, or histograms."""

    def __init__(
        self,
        values: Sequence[tuple[float, float]],
        histograms: Iterable[Buckets | None],
        objective: Objective | None,
    ) -> None:
        self._values, self._objective = values, objective
        self._ordered = sorted([value for _, value in values])
        self._histograms = [histogram for histogram in histograms if histogram is not None]

    def summarize(self, since_s: float, span_s: float) -> Latency | None:
        if not self._values:
            return summarize_histograms(self._histograms, self._objective)
        latency = summarize_latency(self._ordered, self._objective)
        if latency is None or self._objective is None or latency.over_slo in (0.0, 1.0):
            return latency
        under_s = self._objective.under_s
        late = ((at_s - since_s, value > under_s) for at_s, value in self._values)
        return replace(latency, clumping=clumping(late, span_s))

    def late(self, duration_s: float | None) -> LateRequests:
        if self._objective is None:
            return LateRequests(0.0, 0.0, duration_s)
        under_s = self._objective.under_s
        if self._values:
            late = self._ordered[bisect_right(self._ordered, under_s) :]
            return LateRequests(len(late), sum(late) / len(late) if late else 0.0, duration_s)
        count = total_s = 0.0
        for histogram in self._histograms:
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
    firsts = [(record.at_s, record.first_s) for record in records if record.first_s is not None]
    gaps = [(record.at_s, record.gap_s) for record in records if record.gap_s is not None]
    ends = [(record.at_s, record.whole_s) for record in records if record.whole_s is not None]
    ttft = _Measured(firsts, (sample.ttft for sample in samples), slo.ttft)
    itl = _Measured(gaps, (sample.itl for sample in samples), slo.itl)
    e2e = _Measured(ends, (sample.e2e for sample in samples), slo.e2e)
    duration_s = mean(value for _, value in ends)
    waiting = {
        name: count_overdue(samples, reading.work, objective)
        for name, objective in (("ttft", slo.ttft), ("e2e", slo.e2e))
    }
    since_s, span_s = reading.at.timestamp() - reading.span_s, reading.span_s
    return replace(
        reading,
        ttft=_with_overdue(ttft.summarize(since_s, span_s), waiting["ttft"]),
        itl=itl.summarize(since_s, span_s),
        e2e=_with_overdue(e2e.summarize(since_s, span_s), waiting["e2e"]),
        ttft_shares=share_ttft(samples, ttft.late(duration_s), waiting["ttft"]),
        itl_shares=share_itl(samples, itl.late(duration_s), reading.work, slo.itl) if slo.itl else None,
        e2e_shares=share_e2e(samples, e2e.late(duration_s), waiting["e2e"]),
    )


def _with_overdue(latency: Latency | None, overdue: float) -> Latency | None:
    """Where nothing ended yet, only the requests that wait are known."""
    if latency is None and overdue:
        return Latency(count=0.0, p50=0.0, p95=0.0, p99=0.0, over_slo=0.0, overdue=overdue)
    return None if latency is None else replace(latency, overdue=overdue)
