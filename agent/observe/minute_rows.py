"""One row a minute of what a target did, for charts and comparisons; no rollout is decided by it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import exp, log
from statistics import fmean

from flettner.agent.domain.events import Observed
from flettner.agent.domain.reading import Gpu, Latency, Reading
from flettner.agent.domain.request_counts import EDGES_S, RequestCounts
from flettner.primitives.quantiles import mean

MINUTE_S = 60
P95 = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteRow:
    """None: unknown. Requests of all servers; gauges of the server with the most traffic."""

    at: int  # Unix time of its start, s
    requests_rps: float | None = None  # requests received, with any outcome
    goodput_rps: float | None = None  # requests that met every objective
    attainment: float | None = None  # share of answered or failed requests that met every objective
    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    preemptions_per_s: float | None = None
    gpu_utilization: float | None = None  # 0..1, mean of the GPUs
    gpu_memory: float | None = None  # 0..1, maximum over the GPUs
    generated_per_s: float | None = None  # tokens of answers, of all servers
    power_w: float | None = None  # of all GPUs


COLUMNS = tuple(column.name for column in fields(MinuteRow) if column.name != "at")
WORST = frozenset({"ttft_p95_s", "itl_p95_s"})  # merged by maximum, other columns by mean


@dataclass(slots=True)
class OpenMinute:
    """The current minute."""

    at: int  # Unix time of its start, s
    seconds: int = 0
    counts: RequestCounts = field(default_factory=RequestCounts)
    readings: list[Reading] = field(default_factory=list)  # windows that do not overlap
    generated: float | None = None  # tokens; None: no server was scraped
    powers_w: list[float] = field(default_factory=list)  # of all GPUs, each second that it is known

    def add(self, observed: Observed, last: Reading | None) -> Reading | None:
        """Add one second; return the last reading that was added to any minute, as `last` is."""
        self.seconds += 1
        for counts in observed.arms.values():
            self.counts += counts
        scraped = [engine.generated for engine in observed.engines.values() if not engine.lost]
        if scraped:
            self.generated = (self.generated or 0.0) + sum(scraped)
        if observed.reading is not None and (power_w := total_power_w(observed.reading.gpus)) is not None:
            self.powers_w.append(power_w)
        reading = observed.reading
        if reading is None or not _is_next(reading, last):
            return last
        self.readings.append(reading)
        return reading

    @property
    def kv_tokens(self) -> float | None:
        """In the KV cache of an engine; None where its size is not known."""
        return mean(
            reading.kv_usage.mean * size
            for reading in self.readings
            if reading.kv_usage is not None and (size := reading.kv_cache_tokens) is not None
        )

    def row(self) -> MinuteRow | None:
        """Return the row; None without data."""
        numbers = _gauge_columns(self.readings)
        numbers["power_w"] = mean(self.powers_w)
        if self.generated is not None:
            numbers["generated_per_s"] = self.generated / max(1, self.seconds)
        if self.counts.asked:
            numbers |= _request_columns(self.counts, max(1, self.seconds))
        else:
            numbers |= _histogram_columns(self.readings)
        return build_row(self.at, numbers)


def build_row(at: int, numbers: Mapping[str, float | None]) -> MinuteRow | None:
    """Return the row of these columns; None without data."""
    present = {name: _rounded(value) for name, value in numbers.items() if value is not None}
    return MinuteRow(at=at, **present) if present else None


def downsample(minutes: Iterable[MinuteRow], every_s: int) -> list[MinuteRow]:
    """Merge rows into intervals of `every_s` seconds, a multiple of a minute, oldest first."""
    groups: dict[int, list[MinuteRow]] = {}
    for minute in minutes:
        groups.setdefault(minute.at // every_s * every_s, []).append(minute)
    if every_s == MINUTE_S:
        return [group[0] for group in groups.values()]
    return [_merge(at, group) for at, group in groups.items()]


def _merge(at: int, group: Sequence[MinuteRow]) -> MinuteRow:
    merged: dict[str, float | None] = {}
    for name in COLUMNS:
        values = [value for row in group if (value := getattr(row, name)) is not None]
        if values:
            merged[name] = max(values) if name in WORST else _rounded(fmean(values))
    weighed = [(row.requests_rps, row.attainment) for row in group]
    heavy = [(rate, share) for rate, share in weighed if rate and share is not None]
    if heavy:
        total = sum(rate for rate, _ in heavy)
        merged["attainment"] = _rounded(sum(rate * share for rate, share in heavy) / total)
    return MinuteRow(at=at, **merged)


def interpolate_quantile(counts: tuple[int, ...], share: float) -> float | None:
    """Interpolate the quantile inside its bucket, assuming a log-uniform distribution."""
    rank = share * sum(counts)
    below = 0
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            high = EDGES_S[min(index, len(EDGES_S) - 1)]
            low = EDGES_S[index - 1] if index else high / 2
            return exp(log(low) + (log(high) - log(low)) * (rank - below) / count)
        below += count
    return None


def _is_next(reading: Reading, last: Reading | None) -> bool:
    """Whether it starts a new window; where few requests make windows long, two a minute may overlap."""
    if last is None:
        return True
    return abs((reading.at - last.at).total_seconds()) >= min(reading.span_s, MINUTE_S / 2)


def _request_columns(counts: RequestCounts, seconds: int) -> dict[str, float | None]:
    """From the proxy's records, which include every request."""
    good = counts.served - counts.missed
    counted: dict[str, float | None] = {
        "requests_rps": counts.asked / seconds,
        "goodput_rps": good / seconds,
        "attainment": good / counts.served if counts.served else None,
    }
    latencies = {
        "ttft_p95_s": interpolate_quantile(counts.ttft, P95),
        "itl_p95_s": interpolate_quantile(counts.itl, P95),
    }
    return counted | {name: value for name, value in latencies.items() if value is not None}


def _histogram_columns(readings: Sequence[Reading]) -> dict[str, float | None]:
    """From vLLM's histograms, without the proxy's records.

    They do not show which request met every objective, so the worst objective stands for all: goodput and
    attainment are upper bounds."""
    ttfts = [(reading.ttft, reading.span_s) for reading in readings if reading.ttft is not None]
    if not ttfts:
        return {}
    rate = sum(latency.count for latency, _ in ttfts) / sum(span_s for _, span_s in ttfts)
    over = [
        latency.over_slo
        for reading in readings
        for latency in (reading.ttft, reading.itl, reading.e2e)
        if latency is not None and latency.over_slo is not None
    ]
    met = 1 - max(over) if over and rate else None
    return {"requests_rps": rate, "attainment": met, "goodput_rps": None if met is None else rate * met}


def _gauge_columns(readings: Sequence[Reading]) -> dict[str, float | None]:
    """Means over the windows, also of the p95, which the proxy's records override."""
    gpus = [gpu for reading in readings for gpu in reading.gpus]
    trends = ("running", "waiting", "kv_usage", "preemptions_per_s")
    columns: dict[str, float | None] = {
        name: mean(trend.mean for reading in readings if (trend := getattr(reading, name)) is not None)
        for name in trends
    }
    return columns | {
        "ttft_p95_s": _p95(reading.ttft for reading in readings),
        "itl_p95_s": _p95(reading.itl for reading in readings),
        "gpu_utilization": mean(gpu.utilization for gpu in gpus if gpu.utilization is not None),
        "gpu_memory": max((share for gpu in gpus if (share := _used_share(gpu)) is not None), default=None),
    }


def _p95(latencies: Iterable[Latency | None]) -> float | None:
    return mean(latency.p95 for latency in latencies if latency is not None and latency.count)


def total_power_w(gpus: Sequence[Gpu]) -> float | None:
    """None unless each GPU reports it."""
    powers_w = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    return sum(powers_w) if gpus and len(powers_w) == len(gpus) else None


def _used_share(gpu: Gpu) -> float | None:
    if gpu.memory_used_mib is None or not gpu.memory_total_mib:
        return None
    return gpu.memory_used_mib / gpu.memory_total_mib


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
