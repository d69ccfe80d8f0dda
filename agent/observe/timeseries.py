"""A target's last 24 hours, one row a minute, for charts; no decision uses it."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import exp, log
from pathlib import Path
from statistics import fmean

import structlog
from pydantic import TypeAdapter, ValidationError

from agent.domain.events import Observed
from agent.domain.reading import Gpu, Latency, Reading
from agent.domain.request_counts import EDGES_S, RequestCounts
from agent.io.files import replace_file

MINUTE_S = 60
KEPT_MINUTES = 24 * 60  # minutes
P95 = 0.95
log_ = structlog.get_logger()


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


COLUMNS = tuple(column.name for column in fields(MinuteRow) if column.name != "at")
WORST = frozenset({"ttft_p95_s", "itl_p95_s"})  # merged by maximum, other columns by mean
_LINE = TypeAdapter(MinuteRow)


@dataclass(slots=True)
class _OpenMinute:
    """The current minute."""

    at: int
    seconds: int = 0
    counts: RequestCounts = field(default_factory=RequestCounts)
    readings: list[Reading] = field(default_factory=list)  # windows that do not overlap


@dataclass(slots=True)
class TimeSeries:
    """The last 24 hours of one target; with a `file` they survive restarts, and a lost line is only a gap."""

    file: Path | None = None
    _minutes: deque[MinuteRow] = field(default_factory=lambda: deque(maxlen=KEPT_MINUTES))
    _open: _OpenMinute | None = None
    _last: Reading | None = None  # the last added one
    _lines: int = 0  # of the file
    _writable: bool = True

    @classmethod
    def load(cls, file: Path) -> "TimeSeries":
        """Load the file; unreadable lines are skipped."""
        series = cls(file=file)
        try:
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            return series
        except OSError as error:
            log_.warning("series.unreadable", file=str(file), why=error.strerror)
            return series
        series._lines = len(lines)
        for minute in _parse_rows(lines):
            if not series._minutes or minute.at > series._minutes[-1].at:
                series._minutes.append(minute)
        return series

    def minutes(self) -> Sequence[MinuteRow]:
        """Return the completed minutes with data, oldest first."""
        return tuple(self._minutes)

    def add(self, observed: Observed) -> None:
        """Add one second. If the clock was set back, the open minute continues until its time has passed."""
        at = int(observed.at.timestamp()) // MINUTE_S * MINUTE_S
        if self._open is None:
            self._open = _OpenMinute(at)
        elif at > self._open.at:
            self._close_minute(self._open)
            self._open = _OpenMinute(at)
        now, reading = self._open, observed.reading
        now.seconds += 1
        for counts in observed.arms.values():
            now.counts += counts
        if reading is not None and _is_next(reading, self._last):
            now.readings.append(reading)
            self._last = reading

    def _close_minute(self, minute: _OpenMinute) -> None:
        row = _row(minute)
        late = self._minutes and row.at <= self._minutes[-1].at
        if late or all(getattr(row, name) is None for name in COLUMNS):
            return
        self._minutes.append(row)
        if self.file is not None:
            self._save(self.file, row)

    def _save(self, file: Path, minute: MinuteRow) -> None:
        """Append the row; rewrite the file after two days' worth. A full disk only costs rows."""
        try:
            if self._lines >= 2 * KEPT_MINUTES:
                replace_file(file, b"".join(_encode_row(one) for one in self._minutes))
                self._lines = len(self._minutes)
            else:
                with file.open("ab") as lines:
                    lines.write(_encode_row(minute))
                self._lines += 1
        except OSError as error:
            if self._writable:
                log_.warning("series.unwritable", file=str(file), why=error.strerror)
            self._writable = False
        else:
            self._writable = True


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
        known = [value for one in group if (value := getattr(one, name)) is not None]
        if known:
            merged[name] = max(known) if name in WORST else _rounded(fmean(known))
    weighed = [(one.requests_rps, one.attainment) for one in group]
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


def _row(minute: _OpenMinute) -> MinuteRow:
    numbers = _gauge_columns(minute.readings)
    if minute.counts.asked:
        numbers |= _request_columns(minute.counts, max(1, minute.seconds))
    else:
        numbers |= _histogram_columns(minute.readings)
    rounded = {name: None if value is None else _rounded(value) for name, value in numbers.items()}
    return MinuteRow(at=minute.at, **rounded)


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
    ttfts = [(one.ttft, one.span_s) for one in readings if one.ttft is not None]
    if not ttfts:
        return {}
    rate = sum(latency.count for latency, _ in ttfts) / sum(span_s for _, span_s in ttfts)
    over = [
        latency.over_slo
        for one in readings
        for latency in (one.ttft, one.itl, one.e2e)
        if latency is not None and latency.over_slo is not None
    ]
    met = 1 - max(over) if over and rate else None
    return {"requests_rps": rate, "attainment": met, "goodput_rps": None if met is None else rate * met}


def _gauge_columns(readings: Sequence[Reading]) -> dict[str, float | None]:
    """Means over the windows, also of the p95, which the proxy's records override."""
    gpus = [gpu for one in readings for gpu in one.gpus]
    trends = ("running", "waiting", "kv_usage", "preemptions_per_s")
    found: dict[str, float | None] = {
        name: _mean(trend.mean for one in readings if (trend := getattr(one, name)) is not None)
        for name in trends
    }
    return found | {
        "ttft_p95_s": _p95(one.ttft for one in readings),
        "itl_p95_s": _p95(one.itl for one in readings),
        "gpu_utilization": _mean(gpu.utilization for gpu in gpus if gpu.utilization is not None),
        "gpu_memory": max((share for gpu in gpus if (share := _used_share(gpu)) is not None), default=None),
    }


def _p95(latencies: Iterable[Latency | None]) -> float | None:
    return _mean(latency.p95 for latency in latencies if latency is not None and latency.count)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _used_share(gpu: Gpu) -> float | None:
    if gpu.memory_used_mib is None or not gpu.memory_total_mib:
        return None
    return gpu.memory_used_mib / gpu.memory_total_mib


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _encode_row(minute: MinuteRow) -> bytes:
    return _LINE.dump_json(minute, exclude_none=True) + b"\n"


def _parse_rows(lines: Iterable[bytes]) -> Iterable[MinuteRow]:
    for line in lines:
        try:
            yield _LINE.validate_json(line)
        except ValidationError:  # torn by a crash, or from another version
            continue
