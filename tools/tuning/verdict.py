"""Compare a tried setting with the setting in force, paired by request, as both got the same requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from flettner.performance_model.search import BLOCK_S, ERRORS, LEAST_GAIN
from flettner.performance_model.trace import Trace, duration_s
from flettner.tools.tuning.trials import TuningTrial

LEAST_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedVerdict:
    """`gain` in shares of the requests, `noise` its standard error."""

    changes: Mapping[str, object]
    base: float
    gain: float
    noise: float

    @property
    def is_better(self) -> bool:
        return self.gain > max(LEAST_GAIN, ERRORS * self.noise)


def compare(base: Sequence[TuningTrial], other: Sequence[TuningTrial], trace: Trace) -> PairedVerdict:
    """Compare over all rounds; each setting has at least one round with a measurement."""
    before, after = _shares(base), _shares(other)
    gain, noise = paired_gain(trace, before, after)
    return PairedVerdict(changes=other[0].changes, base=sum(before) / len(before), gain=gain, noise=noise)


def paired_gain(trace: Trace, before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the mean difference of two shares for each request, and its standard error over blocks of time.

    A block is longer than a burst, but there are at least LEAST_BLOCKS.
    """
    length_s = max(1e-9, min(BLOCK_S, duration_s(trace) / LEAST_BLOCKS))
    blocks: dict[int, list[float]] = {}
    for request, old, new in zip(trace, before, after, strict=True):
        blocks.setdefault(int(request.arrival_s / length_s), []).append(new - old)
    gain, count = (sum(after) - sum(before)) / len(trace), len(blocks)
    if count == 1:
        return gain, 1.0
    spread = sum((sum(block) - gain * len(block)) ** 2 for block in blocks.values())
    return gain, sqrt(spread * count / (count - 1)) / len(trace)


def _shares(rounds: Sequence[TuningTrial]) -> list[float]:
    measured = [trial.good for trial in rounds if trial.good]
    return [sum(map(int, of)) / len(of) for of in zip(*measured, strict=True)]
