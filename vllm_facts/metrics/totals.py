"""The totals of one /metrics page of a vLLM server, over all engines and model names.

Metric names cover versions 0.11 to 0.33, newest first: a server with an old and a new name counts once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isinf

from vllm_facts.errors import MetricsPageError
from vllm_facts.metrics.exposition import SampleRow, decode_page, parse_bucket, parse_labels, pick_samples

GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # 0..1 in spite of the name
}
COUNTERS: dict[str, tuple[str, ...]] = {
    "preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "cached_tokens": ("vllm:prompt_tokens_cached_total",),  # since 0.17
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "finished": ("vllm:request_success_total",),
}
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue": ("vllm:request_queue_time_seconds",),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "inference": ("vllm:request_inference_time_seconds",),
    "prompts": ("vllm:request_prompt_tokens",),
    "answers": ("vllm:request_generation_tokens",),
    "steps": ("vllm:iteration_tokens_total",),  # a histogram in spite of the name
}
CONFIG = "vllm:cache_config_info"
ANSWERED = "http_requests_total"  # a series for each status is added with its first request
REJECTED = "vllm:admission_rejections_total"  # since 0.32
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"  # since 0.20
SLEEP, AWAKE = "vllm:engine_sleep_state", "awake"
BORN = ("process_start_time_seconds", "vllm:prompt_tokens_created")
"""Both are absent with several API server processes; an elastic scale-up changes only the second."""

_BY_LABEL = frozenset({ANSWERED, REJECTED, WAITING_BY_REASON, COUNTERS["finished"][0]})
"""A label that is new on the later page was 0 before, so such series may be added."""

TOO_MANY = 1e18
"""No counter reaches this; two near the largest float would add up to infinity."""

_WANTED = frozenset(
    [name for names in (*GAUGES.values(), *COUNTERS.values()) for name in names]
    + [name + part for names in HISTOGRAMS.values() for name in names for part in ("_bucket", "_sum")]
    + [CONFIG, *BORN, ANSWERED, REJECTED, WAITING_BY_REASON, SLEEP]
)
_PLAIN = {
    field: names[0].removeprefix("vllm:").removesuffix("_total")
    for field, names in (GAUGES | COUNTERS | HISTOGRAMS).items()
}
METRICS = frozenset(_PLAIN.values())
"""The plain names of all metrics that are read; those that a page lacks are its `missing`."""


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
    series: int  # how many the totals are made of, without those of _BY_LABEL
    answered: Mapping[str, float] = field(default_factory=dict)  # POST requests by class of status: "5xx"
    statuses: int = 0  # how many series ANSWERED has; they only become more
    rejected: Mapping[str, float] = field(default_factory=dict)  # by admission limit
    deferred: float | None = None  # of those that wait, for something other than capacity
    engines: Mapping[str, EngineTotals] = field(default_factory=dict)  # empty with one engine


def totals(body: bytes) -> PageTotals:
    """Parse a /metrics page. Raises MetricsPageError if it is truncated, or not of a vLLM server.

    A metric with a NaN, infinite, negative or impossibly large value counts as missing.
    """
    text = decode_page(body)
    rows = pick_samples(text, _WANTED)
    if not any(name.startswith("vllm:") for name in rows):
        if "\nvllm:" in text:
            raise MetricsPageError(
                "the page has vllm: metrics, but none that is known here (vLLM 0.11 or newer?)"
            )
        raise MetricsPageError(
            "the page has no vllm: metric: not a vLLM server, or one run with --disable-log-stats"
        )
    gauges = _numbers(GAUGES, rows, lambda field: max if field == "kv_usage" else sum)
    if gauges.get("kv_usage", 0.0) > 1.0:
        del gauges["kv_usage"]
    for load in ("running", "waiting"):
        if load not in gauges:
            raise MetricsPageError(
                f"{GAUGES[load][0]} is missing or not a number: the server's load is not known"
            )
    counters = _numbers(COUNTERS, rows, lambda _: sum)
    histograms = {field: read for field, names in HISTOGRAMS.items() if (read := _histogram(names, rows))}
    config = rows.get(CONFIG)
    return PageTotals(
        born={name: tuple(value for _, value in rows[name] if value < inf) for name in BORN if name in rows},
        gauges=gauges,
        counters={field: value for field, value in counters.items() if field != "finished"},
        finished=_by_label("finished_reason", rows[COUNTERS["finished"][0]])
        if "finished" in counters
        else {},
        histograms=histograms,
        facts={**(_facts(config[0][0]) if config else {}), **_sleep_state(rows.get(SLEEP, []))},
        missing=frozenset(
            name for field, name in _PLAIN.items() if field not in gauges | counters | histograms
        ),
        series=sum(
            len(found) if not name.endswith("_bucket") else sum('le="+Inf"' in inside for inside, _ in found)
            for name, found in rows.items()
            if name not in _BY_LABEL
        ),
        answered=_by_status(rows.get(ANSWERED, [])),
        statuses=len(rows.get(ANSWERED, [])),
        rejected=_by_label("reason", rows.get(REJECTED, [])),
        deferred=_by_label("reason", rows.get(WAITING_BY_REASON, [])).get("deferred"),
        engines=_engines(rows),
    )


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
    """Whether the second page can be of a later process than the first one: their births do not deny it."""
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


def _numbers(
    fields: Mapping[str, tuple[str, ...]],
    rows: Mapping[str, list[SampleRow]],
    joined: Callable[[str], Callable[[Iterable[float]], float]],
) -> dict[str, float]:
    read = {}
    for gauge, names in fields.items():
        found = next((rows[name] for name in names if name in rows), None)
        if found and _countable(value for _, value in found):
            read[gauge] = float(joined(gauge)(value for _, value in found))
    return read


def _countable(values: Iterable[float]) -> bool:
    return all(0.0 <= value < TOO_MANY for value in values)  # NaN is not


def _facts(inside: str) -> Mapping[str, str]:
    """The configuration of the KV cache and its size; of several engines, the first."""
    return {name: value for name, value in parse_labels(inside).items() if name != "engine"}


def _sleep_state(found: list[SampleRow]) -> dict[str, str]:
    """`sleep_state`: "awake" only if every engine is."""
    states = sorted(parse_labels(inside).get("sleep_state", "") for inside, value in found if value)
    return {"sleep_state": next((state for state in states if state != AWAKE), AWAKE)} if states else {}


def _by_label(label: str, found: list[SampleRow]) -> Mapping[str, float]:
    """Sums by the value of a label; empty if a value is not a number."""
    sums: dict[str, float] = {}
    for inside, value in found if _countable(value for _, value in found) else ():
        key = parse_labels(inside).get(label, "")
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _by_status(found: list[SampleRow]) -> Mapping[str, float]:
    """POST requests by class of status; health checks and lists of models are GET requests."""
    posts = [row for row in found if parse_labels(row[0]).get("method") == "POST"]
    sums: dict[str, float] = {}
    for status, value in _by_label("status", posts).items():
        key = f"{status[:1]}xx"
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _engines(rows: Mapping[str, list[SampleRow]]) -> Mapping[str, EngineTotals]:
    """Each engine of several, by its label."""
    if len(rows[GAUGES["running"][0]]) == 1:
        return {}
    by_engine = {
        field: _by_label("engine", rows.get(name, []))
        for field, (name, *_) in (GAUGES | COUNTERS).items()
        if field in {"running", "waiting", "prompt_tokens", "generation_tokens", "finished"}
    }
    names = list(by_engine["running"])
    if len(names) == 1 or any(engines.keys() != set(names) for engines in by_engine.values()):
        return {}
    return {
        name: EngineTotals(
            running=by_engine["running"][name],
            waiting=by_engine["waiting"][name],
            tokens=by_engine["prompt_tokens"][name] + by_engine["generation_tokens"][name],
            ended=by_engine["finished"][name],
        )
        for name in names
    }


def _histogram(names: tuple[str, ...], rows: Mapping[str, list[SampleRow]]) -> HistogramTotals | None:
    """None without a usable histogram. Raises MetricsPageError when a part of it is missing."""
    name = next((name for name in names if f"{name}_bucket" in rows or f"{name}_sum" in rows), None)
    if name is None:
        return None
    series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for inside, value in rows.get(f"{name}_bucket", ()):
        edge, of = parse_bucket(inside)
        series.setdefault(of, []).append((edge, value))
    sums = [value for _, value in rows.get(f"{name}_sum", ())]
    if len(sums) != len(series) or any(not isinf(buckets[-1][0]) for buckets in series.values()):
        raise MetricsPageError(f"the histogram {name} is incomplete: the metrics page is cut")
    edges = {tuple(edge for edge, _ in buckets) for buckets in series.values()}
    if len(edges) != 1 or not _countable(sums):
        return None
    counts = [tuple(count for _, count in buckets) for buckets in series.values()]
    if not all(_countable(of) and list(of) == sorted(of) for of in counts):
        return None
    return HistogramTotals(edges.pop(), tuple(map(sum, zip(*counts, strict=True))), sum(sums))
