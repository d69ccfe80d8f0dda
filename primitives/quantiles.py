"""Means and quantiles, of values and of histograms."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean


def mean(values: Iterable[float]) -> float | None:
    """None without values."""
    listed = list(values)
    return fmean(listed) if listed else None


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile of sorted values, at least one, with linear interpolation between neighbours by rank."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def histogram_quantile(edges: Sequence[float], counts: Sequence[float], share: float) -> float:
    """The quantile interpolated in its bucket, as Prometheus does; the last edge caps larger values.

    `edges`: the upper ones, ascending, without infinity. `counts`: of each bucket, the one above the last
    edge included.
    """
    rank, below = share * sum(counts), 0.0
    for (lower, upper), count in zip(pairwise((0.0, *edges)), counts, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below += count
    return edges[-1]
