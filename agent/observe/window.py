"""Summaries of a time window: trends of scraped signals, and latencies from requests or histograms."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import compress
from math import ceil
from operator import mul

from flettner.agent.domain.model import Objective
from flettner.agent.domain.reading import Buckets, EngineSample, Latency, Trend
from flettner.primitives.quantiles import histogram_quantile


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """The scrapes in a window, and how many seconds of its first and second half each of them covers."""

    samples: Sequence[EngineSample]
    early_s: Sequence[float]
    late_s: Sequence[float]
    early_total_s: float
    late_total_s: float
    covers: Sequence[float]  # the larger part of each; 0: none

    @property
    def covered_s(self) -> float:
        return self.early_total_s + self.late_total_s


def select_window(
    samples: Iterable[EngineSample], *, at: datetime, span_s: float, fresh_s: float
) -> SampleWindow:
    """Select the samples in the `span_s` seconds up to `at`.

    A scrape covers the interval before it, at most `fresh_s`: the rest of a longer gap is unknown.
    """
    selected: list[EngineSample] = []
    early_s: list[float] = []
    late_s: list[float] = []
    half_s, begin = span_s / 2, at - timedelta(seconds=span_s)
    for sample in samples:
        if not begin < sample.at <= at:
            continue
        end_s = span_s - (at - sample.at).total_seconds()
        begin_s = max(0.0, end_s - min(sample.interval_s, fresh_s))
        selected.append(sample)
        early_s.append(max(0.0, min(end_s, half_s) - begin_s))
        late_s.append(max(0.0, end_s - max(begin_s, half_s)))
    covers = list(map(max, early_s, late_s))
    return SampleWindow(selected, early_s, late_s, sum(early_s), sum(late_s), covers)


def average_gauge(window: SampleWindow, values: Sequence[float]) -> Trend:
    """Average by covered time; a half without scrapes repeats the mean. A first scrape alone counts fully."""
    if not window.covered_s:
        mean, high = sum(values) / len(values), max(values)
        at_high = sum(value == high for value in values) / len(values)
        return Trend(mean=mean, low=min(values), high=high, early=mean, late=mean, at_high=at_high)
    early = sum(map(mul, values, window.early_s))
    late = sum(map(mul, values, window.late_s))
    early_total_s, late_total_s = window.early_total_s, window.late_total_s
    mean = (early + late) / (early_total_s + late_total_s)
    counted = list(compress(values, window.covers))
    high = max(counted)
    at_high_s = sum(compress(window.covers, (value == high for value in values)))
    return Trend(
        mean=mean,
        low=min(counted),
        high=high,
        at_high=at_high_s / (early_total_s + late_total_s),
        early=early / early_total_s if early_total_s else mean,
        late=late / late_total_s if late_total_s else mean,
    )


def average_rate(window: SampleWindow, increases: Sequence[float]) -> Trend | None:
    """Average increases per second; None before the second scrape of a process."""
    if not window.covered_s:
        return None
    per_s = [
        increase / sample.interval_s if sample.interval_s else 0.0
        for increase, sample in zip(increases, window.samples, strict=True)
    ]
    return average_gauge(window, per_s)


def summarize_latency(ordered_s: Sequence[float], objective: Objective | None) -> Latency | None:
    """Nearest-rank percentiles of single requests, the fastest first; None without requests."""
    if not ordered_s:
        return None
    count = len(ordered_s)
    p50, p95, p99 = (ordered_s[ceil(share * count) - 1] for share in (0.5, 0.95, 0.99))
    late = None if objective is None else (count - bisect_right(ordered_s, objective.under_s)) / count
    return Latency(count=count, p50=p50, p95=p95, p99=p99, over_slo=late)


def summarize_histograms(histograms: Iterable[Buckets | None], objective: Objective | None) -> Latency | None:
    """Percentiles interpolated in the buckets as Prometheus does; the last edge caps larger values.

    `over_slo` uses the nearest edge at or below the objective, so it overestimates; None if there is no such
    edge. Histograms with other edges than the latest are skipped, because they cannot be added.
    """
    present = [histogram for histogram in histograms if histogram is not None]
    if not present or not present[-1].edges:
        return None
    edges = present[-1].edges
    counts = [sum(column) for column in zip(*(h.counts for h in present if h.edges == edges), strict=True)]
    total = sum(counts)
    if total <= 0:
        return None
    late = None
    snapped = sum(edge <= objective.under_s for edge in edges) if objective else 0
    if snapped:
        late = sum(counts[snapped:]) / total
    p50, p95, p99 = (histogram_quantile(edges, counts, share) for share in (0.5, 0.95, 0.99))
    return Latency(count=total, p50=p50, p95=p95, p99=p99, over_slo=late)
