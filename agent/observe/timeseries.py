"""What a day of a target looked like, one point a minute: for people's charts, no decision rests on it."""

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

MINUTE_S = 60
KEPT = 24 * 60  # minutes
P95 = 0.95
log_ = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteRow:
    """None: not known. Requests are those of all servers; gauges those of the server with most traffic."""

    at: int  # Unix time of its begin, s
    requests_rps: float | None = None  # asked, whatever became of them
    goodput_rps: float | None = None  # that met every objective
    attainment: float | None = None  # share of the answered or failed ones that met every objective
    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    preemptions_per_s: float | None = None
    gpu_utilization: float | None = None  # 0..1, mean of the GPUs
    gpu_memory: float | None = None  # 0..1, of the fullest GPU


COLUMNS = tuple(column.name for column in fields(MinuteRow) if column.name != "at")
WORST = frozenset({"ttft_p95_s", "itl_p95_s"})  # of several minutes the highest is told, of others the mean
_LINE = TypeAdapter(MinuteRow)


@dataclass(slots=True)
class _Open:
    """The minute that is not over."""

    at: int
    seconds: int = 0
    arm: RequestCounts = field(default_factory=RequestCounts)
    readings: list[Reading] = field(default_factory=list)  # windows that do not overlap


@dataclass(slots=True)
class TimeSeries:
    """The last 24 hours of one target. With a `file` they outlive the daemon; a lost line is only a gap."""

    file: Path | None = None
    _minutes: deque[MinuteRow] = field(default_factory=lambda: deque(maxlen=KEPT))
    _open: _Open | None = None
    _last: Reading | None = None  # of those that were taken
    _lines: int = 0  # of the file
    _writable: bool = True

    @classmethod
    def of(cls, file: Path) -> "TimeSeries":
        """With what the file holds; what cannot be read there is left out."""
        series = cls(file=file)
        try:
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            return series
        except OSError as error:
            log_.warning("series.unreadable", file=str(file), why=error.strerror)
            return series
        series._lines = len(lines)
        for minute in _read(lines):
            if not series._minutes or minute.at > series._minutes[-1].at:
                series._minutes.append(minute)
        return series

    def minutes(self) -> Sequence[MinuteRow]:
        """Those that are over, oldest first; without those in which nothing was seen."""
        return tuple(self._minutes)

    def take(self, seen: Observed) -> None:
        """Once a second. After a clock was set back the open minute goes on until its time has passed."""
        at = int(seen.at.timestamp()) // MINUTE_S * MINUTE_S
        if self._open is None:
            self._open = _Open(at)
        elif at > self._open.at:
            self._close(self._open)
            self._open = _Open(at)
        now, reading = self._open, seen.reading
        now.seconds += 1
        for arm in seen.arms.values():
            now.arm += arm
        if reading is not None and _follows(reading, self._last):
            now.readings.append(reading)
            self._last = reading

    def _close(self, ended: _Open) -> None:
        minute = _minute(ended)
        late = self._minutes and minute.at <= self._minutes[-1].at
        if late or all(getattr(minute, name) is None for name in COLUMNS):
            return
        self._minutes.append(minute)
        if self.file is not None:
            self._keep(self.file, minute)

    def _keep(self, file: Path, minute: MinuteRow) -> None:
        """Append; after two days' worth write anew. A full disk costs points, nothing else."""
        try:
            if self._lines >= 2 * KEPT:
                aside = file.with_suffix(".new")
                aside.write_bytes(b"".join(_line(one) for one in self._minutes))
                aside.replace(file)
                self._lines = len(self._minutes)
            else:
                with file.open("ab") as lines:
                    lines.write(_line(minute))
                self._lines += 1
        except OSError as error:
            if self._writable:
                log_.warning("series.unwritable", file=str(file), why=error.strerror)
            self._writable = False
        else:
            self._writable = True


def thinned(minutes: Iterable[MinuteRow], every_s: int) -> list[MinuteRow]:
    """One for each `every_s` seconds (whole minutes) in which there was any, oldest first."""
    groups: dict[int, list[MinuteRow]] = {}
    for minute in minutes:
        groups.setdefault(minute.at // every_s * every_s, []).append(minute)
    if every_s == MINUTE_S:
        return [group[0] for group in groups.values()]
    return [_merged(at, group) for at, group in groups.items()]


def _merged(at: int, group: Sequence[MinuteRow]) -> MinuteRow:
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


def quantile(counts: tuple[int, ...], share: float) -> float | None:
    """The quantile, interpolated inside its bucket as if the counts lay evenly on a logarithmic scale."""
    wanted = share * sum(counts)
    seen = 0
    for place, count in enumerate(counts):
        if count and seen + count >= wanted:
            high = EDGES_S[min(place, len(EDGES_S) - 1)]
            low = EDGES_S[place - 1] if place else high / 2
            return exp(log(low) + (log(high) - log(low)) * (wanted - seen) / count)
        seen += count
    return None


def _follows(reading: Reading, last: Reading | None) -> bool:
    return last is None or abs((reading.at - last.at).total_seconds()) >= reading.span_s


def _minute(ended: _Open) -> MinuteRow:
    numbers = _gauges(ended.readings)
    if ended.arm.asked:
        numbers |= _requests(ended.arm, max(1, ended.seconds))
    else:
        numbers |= _histograms(ended.readings)
    rounded = {name: None if value is None else _rounded(value) for name, value in numbers.items()}
    return MinuteRow(at=ended.at, **rounded)


def _requests(arm: RequestCounts, seconds: int) -> dict[str, float | None]:
    """As the proxy has recorded them, which knows of every single one."""
    good = arm.total - arm.errors - arm.late
    counted: dict[str, float | None] = {
        "requests_rps": arm.asked / seconds,
        "goodput_rps": good / seconds,
        "attainment": good / arm.total if arm.total else None,
    }
    latencies = {"ttft_p95_s": quantile(arm.ttft, P95), "itl_p95_s": quantile(arm.itl, P95)}
    return counted | {name: value for name, value in latencies.items() if value is not None}


def _histograms(readings: Sequence[Reading]) -> dict[str, float | None]:
    """Without the proxy's records: vLLM's own. Which request met *every* objective they cannot say, so the
    objective that suffers most stands for all: goodput and attainment are at most so high."""
    firsts = [(one.ttft, one.span_s) for one in readings if one.ttft is not None]
    if not firsts:
        return {}
    rate = sum(latency.count for latency, _ in firsts) / sum(span_s for _, span_s in firsts)
    over = [
        latency.over_slo
        for one in readings
        for latency in (one.ttft, one.itl, one.e2e)
        if latency is not None and latency.over_slo is not None
    ]
    met = 1 - max(over) if over and rate else None
    return {"requests_rps": rate, "attainment": met, "goodput_rps": None if met is None else rate * met}


def _gauges(readings: Sequence[Reading]) -> dict[str, float | None]:
    """Means of the windows; of the p95 too, for which proxy records of all servers come first."""
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
        "gpu_memory": max((share for gpu in gpus if (share := _filled(gpu)) is not None), default=None),
    }


def _p95(latencies: Iterable[Latency | None]) -> float | None:
    return _mean(latency.p95 for latency in latencies if latency is not None and latency.count)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _filled(gpu: Gpu) -> float | None:
    if gpu.memory_used_mib is None or not gpu.memory_total_mib:
        return None
    return gpu.memory_used_mib / gpu.memory_total_mib


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _line(minute: MinuteRow) -> bytes:
    return _LINE.dump_json(minute, exclude_none=True) + b"\n"


def _read(lines: Iterable[bytes]) -> Iterable[MinuteRow]:
    for line in lines:
        try:
            yield _LINE.validate_json(line)
        except ValidationError:  # torn by a crash, or of another version
            continue
