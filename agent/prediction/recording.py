"""What was recorded of one target: the input of a lesson, small and picklable."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import nan
from typing import TypedDict

from flettner.agent.domain.reading import Buckets, EngineSample, Request
from flettner.agent.domain.request_counts import token_gap_s
from flettner.performance_model.log_clock import BusySpan

UNKNOWN = -1  # a count that the proxy does not know
MOST_SKEW_S = 10.0
"""Between the proxy's clock and ours; beyond it the proxy's time of an arrival is not used."""


@dataclass(slots=True, kw_only=True)
class RequestColumns:
    """Requests that the proxy recorded and a server answered, in order of their ends."""

    begun_s: "array[float]" = field(default_factory=lambda: array("d"))  # Unix time
    ended_s: "array[float]" = field(default_factory=lambda: array("d"))
    ttft_s: "array[float]" = field(default_factory=lambda: array("f"))  # NaN: not known
    gap_s: "array[float]" = field(default_factory=lambda: array("f"))  # mean between tokens; NaN: not known
    outputs: "array[int]" = field(default_factory=lambda: array("l"))  # tokens
    sizes: "array[int]" = field(default_factory=lambda: array("l"))  # bytes of the request's body

    def __len__(self) -> int:
        return len(self.begun_s)

    def add(self, request: Request, ended_s: float) -> None:
        begun_s, gap_s = ended_s - request.duration_s, token_gap_s(request)
        if request.began_s is not None and abs(request.began_s - begun_s) < MOST_SKEW_S:
            begun_s = request.began_s
        self.begun_s.append(begun_s)
        self.ended_s.append(ended_s)
        self.ttft_s.append(nan if request.ttft_s is None else request.ttft_s)
        self.gap_s.append(nan if gap_s is None else gap_s)
        self.outputs.append(_count(request.tokens))
        self.sizes.append(_count(request.request_bytes))

    def keep_latest(self, since_s: float, most: int) -> None:
        """Drop those that ended before `since_s`, and the oldest of more than `most`."""
        drop = max(0, len(self) - most)
        while drop < len(self) and self.ended_s[drop] < since_s:
            drop += 1
        if drop:
            for column in fields(self):
                del getattr(self, column.name)[:drop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Increases of vLLM's counters and histograms, of all servers of the target. None: not counted."""

    prompts: Buckets | None = None
    answers: Buckets | None = None
    ttft: Buckets | None = None
    gaps: Buckets | None = None
    itl: Buckets | None = None
    queue: Buckets | None = None
    prefill: Buckets | None = None
    e2e: Buckets | None = None
    inference: Buckets | None = None
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    finished: float = 0.0  # requests


class _Histograms(TypedDict):
    prompts: Buckets | None
    answers: Buckets | None
    ttft: Buckets | None
    gaps: Buckets | None
    itl: Buckets | None
    queue: Buckets | None
    prefill: Buckets | None
    e2e: Buckets | None
    inference: Buckets | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """About a minute of one target."""

    begin_s: float  # Unix time
    end_s: float
    sums: Sums
    arrivals_s: "array[float]"  # of requests, by vLLM's gauges and counters; Unix time
    histogram_rows: bytes  # pickled windows of steps
    logged_rows: tuple[bytes, ...]  # the same, of each read of the iteration log
    busy: tuple[BusySpan, ...]  # of the logged steps
    steady: bool  # all servers ran the setting in force, so that it may be compared with a prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The last minutes, oldest first; `requests` is empty where no proxy records them."""

    minutes: tuple[Minute, ...]
    requests: RequestColumns


def sum_samples(samples: Iterable[EngineSample]) -> Sums:
    listed = list(samples)
    return Sums(
        prompt_tokens=sum(sample.prompt_tokens for sample in listed),
        cached_tokens=sum(sample.cached_tokens for sample in listed),
        finished=sum(sum(sample.finished.values()) for sample in listed),
        **_histograms(listed),
    )


def sum_minutes(minutes: Iterable[Minute]) -> Sums:
    sums = [minute.sums for minute in minutes]
    return Sums(
        prompt_tokens=sum(part.prompt_tokens for part in sums),
        cached_tokens=sum(part.cached_tokens for part in sums),
        finished=sum(part.finished for part in sums),
        **_histograms(sums),
    )


def _histograms(parts: Sequence[EngineSample | Sums]) -> _Histograms:
    return _Histograms(
        prompts=add_buckets(part.prompts for part in parts),
        answers=add_buckets(part.answers for part in parts),
        ttft=add_buckets(part.ttft for part in parts),
        gaps=add_buckets(part.gaps for part in parts),
        itl=add_buckets(part.itl for part in parts),
        queue=add_buckets(part.queue for part in parts),
        prefill=add_buckets(part.prefill for part in parts),
        e2e=add_buckets(part.e2e for part in parts),
        inference=add_buckets(part.inference for part in parts),
    )


def add_buckets(histograms: Iterable[Buckets | None]) -> Buckets | None:
    """Those with the edges of the latest; None if nothing was counted."""
    present = [histogram for histogram in histograms if histogram is not None and histogram.total]
    if not present:
        return None
    same = [histogram for histogram in present if histogram.edges == present[-1].edges]
    counts = tuple(map(sum, zip(*(histogram.counts for histogram in same), strict=True)))
    return Buckets(present[-1].edges, counts, sum(histogram.sum for histogram in same))


def _count(value: int | None) -> int:
    return value if value is not None and 0 <= value < 1 << 31 else UNKNOWN
