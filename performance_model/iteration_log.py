"""Reads the lines that `--enable-logging-iteration-details` adds to vLLM's log, one for each engine step.

Of vLLM 0.32, v1/metrics/loggers.py: _log_iteration_details, without what logging puts before it:
Engine 000: Iteration(7): 1 context requests, 512 context tokens, 3 generation requests, 3 generation tokens,
iteration elapsed time: 12.34 ms, GPU KV cache usage: 1.5%

The elapsed time is only the wait for the result (v1/engine/core.py: step, step_with_batch_queue).
Scheduling, sending the work and handling the output are not in it, and under async scheduling it is shorter
by what overlaps with them; where the model runs inside of the sending (one worker in the engine's process, on
the CPU) nearly nothing is left. `log_clock` measures the rest.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LINE = re.compile(
    r"(?:(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) .{0,80}?)?"
    r"(?:Engine (?P<engine>\d{1,6}): )?Iteration\((?P<index>\d{1,15})\): "
    r"(?P<prefills>\d{1,9}) context requests, (?P<prefill_tokens>\d{1,9}) context tokens, "
    r"(?P<decodes>\d{1,9}) generation requests, (?P<decode_tokens>\d{1,9}) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,12}\.\d+) ms(?P<dummy> \(dummy\))?"
    r"(?:, \w+ KV cache usage: (?P<kv>\d{1,3}\.\d+)%)?"
)


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
        match = _LINE.search(line)
        if match is None or match["dummy"]:
            continue
        yield StepRecord(
            seconds=float(match["ms"]) / 1000,
            prefills=int(match["prefills"]),
            prefill_tokens=int(match["prefill_tokens"]),
            decodes=int(match["decodes"]),
            decode_tokens=int(match["decode_tokens"]),
            kv_share=float(match["kv"]) / 100 if match["kv"] else None,
            index=int(match["index"]),
            engine=int(match["engine"] or 0),
            logged_s=_clock_s(match) if match["second"] else None,
        )


def _clock_s(match: re.Match[str]) -> int:
    """Seconds since the begin of the year, all months with 31 days: a stretch over a month's end is
    ignored."""
    days = 31 * int(match["month"]) + int(match["day"])
    return 86_400 * days + 3600 * int(match["hour"]) + 60 * int(match["minute"]) + int(match["second"])
