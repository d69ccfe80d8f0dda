"""Reads the totals of /metrics pages of a vLLM server.

The names and labels of a page stay while its server runs; only the values change. So the labels are parsed
once, and a page with the same text before its values takes a few additions.
"""

from collections.abc import Mapping, Sequence
from math import inf, isnan

from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics import names
from flettner.vllm_facts.metrics.exposition import decode_page
from flettner.vllm_facts.metrics.page_layout import HistogramLayout, PageLayout, Places, parse_layout
from flettner.vllm_facts.metrics.page_totals import EngineTotals, HistogramTotals, PageTotals

REMEMBERED = 4  # layouts of one server: its replicas differ by the statuses that they have answered
LONGEST_REMEMBERED = 2**20  # characters; a page of one rank has 50,000
_SHOWN = 160  # characters of an error, which repeats the value


class PageReader:
    """Reads the pages of one server. `layouts`: those that it remembers, the latest first."""

    def __init__(self) -> None:
        self.layouts: tuple[PageLayout, ...] = ()

    def totals(self, body: bytes) -> PageTotals:
        """Parse a /metrics page. Raises MetricsPageError if it is truncated, or not of a vLLM server.

        A metric with a NaN, infinite, negative or impossibly large value counts as missing.
        """
        parts = [line.rpartition(" ") for line in decode_page(body).split("\n")]
        heads = "\n".join([head or value for head, _, value in parts])  # a line without a value is all head
        layout = next((remembered for remembered in self.layouts if remembered.heads == heads), None)
        if layout is None:
            layout = parse_layout(heads)
            if len(heads) <= LONGEST_REMEMBERED:
                self.layouts = (layout, *self.layouts[: REMEMBERED - 1])
        return _totals(layout, _numbers(layout, parts))


def totals(body: bytes) -> PageTotals:
    """Parse a single page, as PageReader does."""
    return PageReader().totals(body)


def _numbers(layout: PageLayout, parts: Sequence[tuple[str, str, str]]) -> list[float]:
    try:
        numbers = [float(parts[line][2]) for line in layout.lines]
        for place, value in layout.stamped.items():
            int(parts[layout.lines[place]][2])
            numbers[place] = value
    except ValueError as error:
        raise MetricsPageError(f"a line of the metrics page cannot be read: {str(error)[:_SHOWN]}") from error
    return numbers


def _totals(layout: PageLayout, numbers: Sequence[float]) -> PageTotals:
    gauges = _present({field: _sum(places, numbers) for field, places in layout.gauges.items()})
    if "kv_usage" in gauges:
        gauges["kv_usage"] = max(numbers[place] for place in layout.gauges["kv_usage"])
        if gauges["kv_usage"] > 1.0:
            del gauges["kv_usage"]
    for load in ("running", "waiting"):
        if load not in gauges:
            raise MetricsPageError(
                f"{names.GAUGES[load][0]} is missing or not a number: the server's load is not known"
            )
    counters = _present({field: _sum(places, numbers) for field, places in layout.counters.items()})
    histograms = {
        field: histogram
        for field, places in layout.histograms.items()
        if (histogram := _histogram(places, numbers)) is not None
    }
    present = gauges.keys() | counters.keys() | histograms.keys()
    return PageTotals(
        born={
            name: tuple(numbers[place] for place in places if numbers[place] < inf)
            for name, places in layout.born.items()
        },
        gauges=gauges,
        counters={field: count for field, count in counters.items() if field != "finished"},
        finished=_by_label(layout.finished, numbers) if "finished" in present else {},
        histograms=histograms,
        facts=_facts(layout, numbers),
        missing=frozenset(name for field, name in names.PLAIN.items() if field not in present),
        series=layout.series,
        answered=_by_label(layout.answered, numbers),
        statuses=layout.statuses,
        rejected=_by_label(layout.rejected, numbers),
        deferred=_by_label(layout.by_reason, numbers).get("deferred"),
        engines=_engines(layout, numbers),
    )


def _present(sums: Mapping[str, float | None]) -> dict[str, float]:
    return {field: total for field, total in sums.items() if total is not None}


def _sum(places: Places, numbers: Sequence[float]) -> float | None:
    """None if a number is no count."""
    values = [numbers[place] for place in places]
    return sum(values) if all(0.0 <= value < names.TOO_MANY for value in values) else None  # NaN is not


def _by_label(labels: Mapping[str, Places], numbers: Sequence[float]) -> dict[str, float]:
    """Sums by the value of a label; empty if a number is no count."""
    sums = {label: _sum(places, numbers) for label, places in labels.items()}
    return {} if None in sums.values() else _present(sums)


def _facts(layout: PageLayout, numbers: Sequence[float]) -> Mapping[str, str]:
    """The facts of the page, with a `sleep_state` that is "awake" only if every engine is."""
    states = sorted(state for state, place in layout.sleep if numbers[place])
    if not states:
        return layout.facts
    return {
        **layout.facts,
        "sleep_state": next((state for state in states if state != names.AWAKE), names.AWAKE),
    }


def _engines(layout: PageLayout, numbers: Sequence[float]) -> dict[str, EngineTotals]:
    """The totals of each engine; empty if a number of an engine is no count."""
    of = {field: _by_label(places, numbers) for field, places in layout.engines.items()}
    if not all(of.values()):
        return {}
    return {
        name: EngineTotals(
            running=running,
            waiting=of["waiting"][name],
            tokens=of["prompt_tokens"][name] + of["generation_tokens"][name],
            ended=of["finished"][name],
        )
        for name, running in of.get("running", {}).items()
    }


def _histogram(layout: HistogramLayout, numbers: Sequence[float]) -> HistogramTotals | None:
    """None if a number is no count, or the counts fall."""
    total = _sum(layout.sums, numbers)
    series = [list(map(numbers.__getitem__, places)) for places in layout.series]
    if total is None or not all(map(_is_cumulative, series)):
        return None
    counts = series[0] if len(series) == 1 else map(sum, zip(*series, strict=True))
    return HistogramTotals(layout.edges, tuple(counts), total)


def _is_cumulative(counts: list[float]) -> bool:
    if isnan(sum(counts)):  # NaN has no place in an order
        return False
    return counts[0] >= 0.0 and counts[-1] < names.TOO_MANY and counts == sorted(counts)
