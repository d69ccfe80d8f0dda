"""The totals of one /metrics page of a vLLM server, over all engines and model names."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HistogramTotals:
    """`counts` are cumulative, as on the page; the last edge is infinite."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTotals:
    """One data-parallel engine."""

    running: float
    waiting: float
    tokens: float  # of prompts and answers
    ended: float  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTotals:
    """One page, all engines (data-parallel ranks) and model names of the server together."""

    born: Mapping[str, tuple[float, ...]]  # by name of BORN
    gauges: Mapping[str, float]
    counters: Mapping[str, float]  # by field of EngineSample, without `finished`
    finished: Mapping[str, float]
    histograms: Mapping[str, HistogramTotals]
    facts: Mapping[str, str]
    missing: frozenset[str]  # newest names, plain: "num_preemptions"
    series: int  # how many the totals are made of, without those of names.BY_LABEL
    answered: Mapping[str, float] = field(default_factory=dict)  # POST requests by class of status: "5xx"
    statuses: int = 0  # how many series ANSWERED has; they only become more
    rejected: Mapping[str, float] = field(default_factory=dict)  # by admission limit
    deferred: float | None = None  # of those that wait, for something other than capacity
    engines: Mapping[str, EngineTotals] = field(default_factory=dict)  # by label; empty: not known


def has_restarted(before: PageTotals, after: PageTotals) -> bool:
    """Whether the process restarted between the two pages."""
    births = [
        (then, now)
        for name in before.born.keys() & after.born.keys()
        for then, now in zip(before.born[name], after.born[name], strict=False)
    ]
    if any(then != now for then, now in births):
        return True
    if births and after.series < before.series:
        return False  # a truncated page of the same process: missing series look like falling counts
    return (
        _fell(before.counters, after.counters)
        or _fell(before.finished, after.finished)
        or any(
            after.histograms[field].counts[-1] < histogram.counts[-1]
            for field, histogram in before.histograms.items()
            if field in after.histograms
        )
    )


def may_be_later(before: PageTotals, after: PageTotals) -> bool:
    """True if the second page can be of a later process than the first, by the births of the processes."""
    births = [
        (then, now)
        for name in before.born.keys() & after.born.keys()
        for then, now in zip(before.born[name], after.born[name], strict=False)
    ]
    if not births:
        return True
    return any(then < now for then, now in births) and all(then <= now for then, now in births)


def _fell(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return any(after[name] < value for name, value in before.items() if name in after)
