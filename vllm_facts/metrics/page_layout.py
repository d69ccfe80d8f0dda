"""The places of the numbers on a metrics page, and their meaning."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isinf

from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics import names
from flettner.vllm_facts.metrics.exposition import find_samples, parse_bucket, parse_labels, parse_value

Places = tuple[int, ...]
"""Indices of numbers that are added up: the first number is in the first of `PageLayout.lines`."""

_Row = tuple[str, int]
"""The labels of a sample, and its place."""

_OF_ENGINE = ("running", "waiting", "prompt_tokens", "generation_tokens", "finished")


@dataclass(frozen=True, slots=True)
class HistogramLayout:
    edges: tuple[float, ...]  # the last one is infinite
    series: tuple[Places, ...]
    sums: Places


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """The fields of PageTotals, with the places of the numbers instead of the numbers."""

    heads: str  # the lines of the page, each without its value
    lines: tuple[int, ...]  # the numbers of the lines that are read
    stamped: Mapping[int, float]  # values before a timestamp, which are part of `heads`, by place
    born: Mapping[str, Places]
    gauges: Mapping[str, Places]
    counters: Mapping[str, Places]
    finished: Mapping[str, Places]
    histograms: Mapping[str, HistogramLayout]
    facts: Mapping[str, str]
    sleep: tuple[_Row, ...]  # a state instead of the labels
    series: int
    answered: Mapping[str, Places]
    statuses: int
    rejected: Mapping[str, Places]
    by_reason: Mapping[str, Places]  # requests that wait
    engines: Mapping[str, Mapping[str, Places]]  # by field and engine


def parse_layout(heads: str) -> PageLayout:
    """Parse the lines of a page, each without its value. Raises MetricsPageError."""
    rows: dict[str, list[_Row]] = {}
    lines = list[int]()
    stamped = dict[int, float]()
    for number, name, inside, after in find_samples(heads.split("\n"), names.WANTED):
        if after:
            stamped[len(lines)] = parse_value(after, name + after)
        rows.setdefault(name, []).append((inside, len(lines)))
        lines.append(number)
    _check_names(rows, heads)
    config = rows.get(names.CONFIG)
    histograms = {field: _histogram(known_names, rows) for field, known_names in names.HISTOGRAMS.items()}
    return PageLayout(
        heads=heads,
        lines=tuple(lines),
        stamped=stamped,
        born={name: _places(rows[name]) for name in names.BORN if name in rows},
        gauges=_by_field(names.GAUGES, rows),
        counters=_by_field(names.COUNTERS | names.DRAFTS, rows),
        finished=_by_label("finished_reason", rows.get(names.COUNTERS["finished"][0])),
        histograms={field: places for field, places in histograms.items() if places is not None},
        facts=_facts(config[0][0]) if config else {},
        sleep=tuple(
            (parse_labels(inside).get("sleep_state", ""), place)
            for inside, place in rows.get(names.SLEEP, ())
        ),
        series=sum(
            len(places)
            if not name.endswith("_bucket")
            else sum('le="+Inf"' in inside for inside, _ in places)
            for name, places in rows.items()
            if name not in names.BY_LABEL
        ),
        answered=_by_status(rows.get(names.ANSWERED, ())),
        statuses=len(rows.get(names.ANSWERED, ())),
        rejected=_by_label("reason", rows.get(names.REJECTED)),
        by_reason=_by_label("reason", rows.get(names.WAITING_BY_REASON)),
        engines=_engines(rows),
    )


def _check_names(rows: Mapping[str, list[_Row]], heads: str) -> None:
    if not any(name.startswith("vllm:") for name in rows):
        if "\nvllm:" in heads:
            raise MetricsPageError(
                "the page has vllm: metrics, but none that is known here (vLLM 0.11 or newer?)"
            )
        raise MetricsPageError(
            "the page has no vllm: metric: not a vLLM server, or one run with --disable-log-stats"
        )


def _places(rows: Iterable[_Row]) -> Places:
    return tuple(place for _, place in rows)


def _by_field(fields: Mapping[str, tuple[str, ...]], rows: Mapping[str, list[_Row]]) -> dict[str, Places]:
    present = (
        (field, next((rows[name] for name in metrics if name in rows), None))
        for field, metrics in fields.items()
    )
    return {field: _places(metric_rows) for field, metric_rows in present if metric_rows}


def _facts(inside: str) -> Mapping[str, str]:
    """The configuration of the KV cache and its size; of several engines, the first."""
    return {name: value for name, value in parse_labels(inside).items() if name != "engine"}


def _by_label(label: str, rows: Iterable[_Row] | None) -> dict[str, Places]:
    """The places by the value of a label."""
    places: dict[str, Places] = {}
    for inside, place in rows or ():
        key = parse_labels(inside).get(label, "")
        places[key] = (*places.get(key, ()), place)
    return places


def _by_status(rows: Iterable[_Row]) -> dict[str, Places]:
    """POST requests by class of status; health checks and lists of models are GET requests."""
    places: dict[str, Places] = {}
    posts = [row for row in rows if parse_labels(row[0]).get("method") == "POST"]
    for status, of_status in _by_label("status", posts).items():
        key = f"{status[:1]}xx"
        places[key] = places.get(key, ()) + of_status
    return places


def _engines(rows: Mapping[str, list[_Row]]) -> dict[str, dict[str, Places]]:
    """Each engine by its label; empty if not all of _OF_ENGINE count the same engines."""
    first = {field: metrics[0] for field, metrics in (names.GAUGES | names.COUNTERS).items()}
    engines = {field: _by_label("engine", rows.get(first[field])) for field in _OF_ENGINE}
    present = engines["running"].keys()
    same = all(places.keys() == present for places in engines.values())
    return engines if same else {}


def _histogram(metrics: tuple[str, ...], rows: Mapping[str, list[_Row]]) -> HistogramLayout | None:
    """None without a histogram whose series can be added. Raises MetricsPageError when a part is missing."""
    name = next((name for name in metrics if f"{name}_bucket" in rows or f"{name}_sum" in rows), None)
    if name is None:
        return None
    series: dict[frozenset[tuple[str, str]], list[tuple[float, int]]] = {}
    for inside, place in rows.get(f"{name}_bucket", ()):
        edge, of = parse_bucket(inside)
        series.setdefault(of, []).append((edge, place))
    sums = _places(rows.get(f"{name}_sum", ()))
    if len(sums) != len(series) or any(not isinf(buckets[-1][0]) for buckets in series.values()):
        raise MetricsPageError(f"the histogram {name} is incomplete: the metrics page is cut")
    edges = {tuple(edge for edge, _ in buckets) for buckets in series.values()}
    if len(edges) != 1:
        return None
    return HistogramLayout(
        edges=edges.pop(),
        series=tuple(tuple(place for _, place in buckets) for buckets in series.values()),
        sums=sums,
    )
