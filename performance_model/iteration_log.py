"""Reads the lines that `--enable-logging-iteration-details` adds to vLLM's log, one for each engine step.

Of vLLM 0.32, v1/metrics/loggers.py: _log_iteration_details, without what logging puts before it:
Engine 000: Iteration(7): 1 context requests, 512 context tokens, 3 generation requests, 3 generation tokens,
iteration elapsed time: 12.34 ms, GPU KV cache usage: 1.5%

The elapsed time is only the wait for the result (v1/engine/core.py: step, step_with_batch_queue).
Scheduling, sending the work and handling the output are not in it, and under async scheduling it is shorter
by what overlaps with them. `unlogged_s` measures the rest by the clock of the log.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_LINE = re.compile(
    r"(?:(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) .{0,80}?)?"
    r"(?:Engine (?P<engine>\d{1,6}): )?Iteration\((?P<index>\d{1,15})\): "
    r"(?P<prefills>\d{1,9}) context requests, (?P<prefill_tokens>\d{1,9}) context tokens, "
    r"(?P<decodes>\d{1,9}) generation requests, (?P<decode_tokens>\d{1,9}) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,12}\.\d+) ms(?P<dummy> \(dummy\))?"
    r"(?:, \w+ KV cache usage: (?P<kv>\d{1,3}\.\d+)%)?"
)


_LEAST_STRETCH_S, _LEAST_KNOWN_S = 0.5, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step that an engine computed."""

    seconds: float
    prefills: int  # requests that compute their prompt
    prefill_tokens: int
    decodes: int
    decode_tokens: int
    kv_share: float | None = None  # of the KV cache in use after the step, 0..1
    index: int = 0
    engine: int = 0
    logged_s: int | None = None  # time of the log line, in whole seconds

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def sequences(self) -> int:
        return self.prefills + self.decodes


def parse_iterations(log: Iterable[str]) -> Iterator[StepRecord]:
    """The steps in a log, in its order, without the dummy steps of data parallelism."""
    for line in log:
        found = _LINE.search(line)
        if found is None or found["dummy"]:
            continue
        yield StepRecord(
            seconds=float(found["ms"]) / 1000,
            prefills=int(found["prefills"]),
            prefill_tokens=int(found["prefill_tokens"]),
            decodes=int(found["decodes"]),
            decode_tokens=int(found["decode_tokens"]),
            kv_share=float(found["kv"]) / 100 if found["kv"] else None,
            index=int(found["index"]),
            engine=int(found["engine"] or 0),
            logged_s=_clock_s(found) if found["second"] else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTime:
    """Stretches in which the engine never idled: by the clock of the log, and as the steps' elapsed times."""

    wall_s: float = 0.0
    known_s: float = 0.0
    steps: float = 0.0

    def __add__(self, other: "BusyTime") -> "BusyTime":
        return BusyTime(
            wall_s=self.wall_s + other.wall_s,
            known_s=self.known_s + other.known_s,
            steps=self.steps + other.steps,
        )

    @property
    def unlogged_s(self) -> float:
        """Mean time of a step that its elapsed time leaves out; 0 if the log cannot tell."""
        is_enough = self.steps and self.known_s >= _LEAST_KNOWN_S
        return max(0.0, (self.wall_s - self.known_s) / self.steps) if is_enough else 0.0


def unlogged_s(records: Sequence[StepRecord]) -> float:
    """Mean time of a step that its elapsed time leaves out; 0 if the log cannot tell."""
    return busy_time(records).unlogged_s


def busy_time(records: Sequence[StepRecord]) -> BusyTime:
    """Between two steps that both decode the engine never idled, so the clock of the log advanced by their
    times. It counts whole seconds; the error of a stretch is below 1 s either way, and cancels out over
    stretches.
    """
    wall_s = known_s = steps = 0.0
    for stretch in _busy_stretches(records):
        elapsed_s = sum(record.seconds for record in stretch[1:])
        first, last = stretch[0].logged_s, stretch[-1].logged_s
        if first is None or last is None or elapsed_s < _LEAST_STRETCH_S or last < first:
            continue
        wall_s += last - first
        known_s += elapsed_s
        steps += len(stretch) - 1
    return BusyTime(wall_s=wall_s, known_s=known_s, steps=steps)


def _busy_stretches(records: Sequence[StepRecord]) -> Iterator[list[StepRecord]]:
    stretch: list[StepRecord] = []
    for record in records:
        if stretch and (not record.decodes or record.index != stretch[-1].index + 1):
            yield stretch
            stretch = []
        stretch.append(record)
    if stretch:
        yield stretch


def _clock_s(found: re.Match[str]) -> int:
    """Seconds since the begin of the year, all months with 31 days: a stretch over a month's end is
    ignored."""
    days = 31 * int(found["month"]) + int(found["day"])
    return 86_400 * days + 3600 * int(found["hour"]) + 60 * int(found["minute"]) + int(found["second"])
