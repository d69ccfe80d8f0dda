"""The totals of several servers behind one name, added up.

Each replica becomes an engine of its own, as a data-parallel rank of one process is.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from flettner.agent.domain.reading import REPLICAS
from flettner.vllm_facts.metrics import names
from flettner.vllm_facts.metrics.page_totals import HistogramTotals, PageTotals

_Value = TypeVar("_Value")


def add_up(replicas: Mapping[str, PageTotals]) -> PageTotals:
    """Add the totals, by address. A metric that a replica lacks is missing."""
    pages = list(replicas.values())
    if len(pages) == 1:
        return pages[0]
    gauges = {
        field: max(each) if field == "kv_usage" else sum(each)
        for field, each in _common([page.gauges for page in pages])
    }
    counters = {field: sum(each) for field, each in _common([page.counters for page in pages])}
    histograms = {
        field: total
        for field, each in _common([page.histograms for page in pages])
        if (total := _add_histograms(each)) is not None
    }
    missing = frozenset(chain.from_iterable(page.missing for page in pages)) | {
        names.PLAIN[field] for field in pages[0].histograms.keys() - histograms.keys()
    }
    deferred = [page.deferred for page in pages if page.deferred is not None]
    return PageTotals(
        born={
            name: tuple(chain.from_iterable(page.born.get(name, ()) for page in pages))
            for name in dict.fromkeys(chain.from_iterable(page.born for page in pages))
        },
        gauges=gauges,
        counters=counters,
        finished={} if names.PLAIN["finished"] in missing else _add([page.finished for page in pages]),
        histograms=histograms,
        facts={**_facts(pages), REPLICAS: str(len(pages))},
        missing=missing,
        series=sum(page.series for page in pages),
        answered=_add([page.answered for page in pages]),
        statuses=sum(page.statuses for page in pages),
        rejected=_add([page.rejected for page in pages]),
        deferred=sum(deferred) if deferred else None,
        engines={
            f"{address}/{engine}": total
            for address, page in replicas.items()
            for engine, total in page.engines.items()
        }
        if all(page.engines for page in pages)
        else {},
    )


def _common(pages: Sequence[Mapping[str, _Value]]) -> Iterator[tuple[str, list[_Value]]]:
    """The values of each field that all pages have."""
    return (
        (field, [page[field] for page in pages]) for field in pages[0] if all(field in page for page in pages)
    )


def _add(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums by label; a label that a replica lacks counts as 0."""
    sums: dict[str, float] = {}
    for label, count in chain.from_iterable(each.items() for each in counts):
        sums[label] = sums.get(label, 0.0) + count
    return sums


def _add_histograms(each: Sequence[HistogramTotals]) -> HistogramTotals | None:
    """The sum of the histograms; None if their edges differ."""
    edges = each[0].edges
    if any(histogram.edges != edges for histogram in each):
        return None
    counts = tuple(map(sum, zip(*(histogram.counts for histogram in each), strict=True)))
    return HistogramTotals(edges, counts, sum(histogram.sum for histogram in each))


def _facts(pages: Sequence[PageTotals]) -> Mapping[str, str]:
    """The facts of the first replica, with a `sleep_state` that is "awake" only if every replica is."""
    states = sorted(page.facts["sleep_state"] for page in pages if "sleep_state" in page.facts)
    asleep = [state for state in states if state != names.AWAKE]
    return {**pages[0].facts, "sleep_state": asleep[0]} if asleep else pages[0].facts
