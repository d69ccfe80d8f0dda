"""The load of a week: lengths of each quarter of an hour, and the requests of a few that differ. Pure.

The trace that the model learns from is of the last 15 minutes. By day it does not show the night, so one
quarter of each kind is kept, the latest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import log
from statistics import fmean

from pydantic import TypeAdapter

from flettner.performance_model.load_mixes import METRICS, ROW_S, LoadRow, TwoMixes
from flettner.performance_model.resample import window
from flettner.performance_model.trace import Trace, TraceRequest, duration_s

MOST_ROWS = 7 * 86_400 // ROW_S
MOST_SAMPLES = 6
MOST_REQUESTS = 1500  # of a sample, the latest: some 30 kB
LEAST_REQUESTS = 50  # of a quarter; fewer show no kind
SAME = log(1.5)  # ratio of both lengths up to which two quarters are of one kind

Request = tuple[
    float, int, int, int
]  # arrival in seconds; tokens of prompt, answer, and of the prompt cached


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    row: LoadRow
    requests: tuple[Request, ...]

    def trace(self) -> Trace:
        return tuple(
            TraceRequest(
                arrival_s=arrival_s,
                prompt_tokens=prompt,
                output_tokens=output,
                cached_tokens=cached,
                prefix_group="shared" if cached else "",
            )
            for arrival_s, prompt, output, cached in self.requests
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHistory:
    rows: tuple[LoadRow, ...] = ()  # oldest first
    samples: tuple[LoadSample, ...] = ()  # that differ, oldest first

    def add(self, at: int, trace: Trace) -> "LoadHistory":
        """Add the quarter of an hour that ends at this Unix time. One with few requests is left out.

        Rows from later, of a clock that was set back since, are dropped.
        """
        rows = [row for row in self.rows if at - MOST_ROWS * ROW_S < row.at <= at]
        if len(trace) < LEAST_REQUESTS or (rows and at < rows[-1].at + ROW_S):
            return self
        row = describe_load(at, trace)
        others = [sample for sample in self.samples if not _is_like(sample.row, row)]
        sample = LoadSample(row=row, requests=tuple(_latest(trace)))
        return LoadHistory(
            rows=(*rows, row)[-MOST_ROWS:],
            samples=(*others, sample)[-MOST_SAMPLES:],
        )

    def sample_of(self, mixes: TwoMixes, *, above: bool) -> LoadSample | None:
        """The sample nearest to the middle of one of the kinds; None if none is of it."""
        middle = mixes.above_tokens if above else mixes.below_tokens

        def length(sample: LoadSample) -> float:
            return float(getattr(sample.row, mixes.metric))

        of_it = [s for s in self.samples if (length(s) > mixes.high if above else length(s) < mixes.low)]
        return min(of_it, key=lambda sample: abs(log(length(sample) / middle)), default=None)


def describe_load(at: int, trace: Trace) -> LoadRow:
    return LoadRow(
        at=at,
        requests=len(trace),
        prompt_tokens=fmean(max(1, request.prompt_tokens - request.cached_tokens) for request in trace),
        answer_tokens=fmean(max(1, request.output_tokens) for request in trace),
    )


def encode(history: LoadHistory) -> bytes:
    return _json().dump_json(history)


def decode(text: bytes) -> LoadHistory:
    """Raises ValueError for another format."""
    return _json().validate_json(text)


@cache
def _json() -> TypeAdapter[LoadHistory]:
    return TypeAdapter(LoadHistory)


def _is_like(row: LoadRow, other: LoadRow) -> bool:
    return all(abs(log(getattr(row, name) / getattr(other, name))) < SAME for name in METRICS)


def _latest(trace: Trace) -> Iterable[Request]:
    if len(trace) > MOST_REQUESTS:
        since_s = trace[-MOST_REQUESTS].arrival_s
        trace = window(trace, since_s, duration_s(trace) - since_s + 1e-6)
    for request in trace:
        yield (
            round(request.arrival_s, 3),
            request.prompt_tokens,
            request.output_tokens,
            request.cached_tokens,
        )
