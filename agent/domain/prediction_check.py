"""The comparison of a rollout's prediction with its measurement, and the record of such checks. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import sqrt

from flettner.performance_model.band import Band
from flettner.vllm_facts.values import Knob, Value, describe_changes

KEPT = 20  # checks
BANDS_HOLD = 0.8  # of what comes, as they are the 10 % and 90 % quantiles of the draws
LATEST, MOST_MISSED = 5, 2
"""The number of a law's latest checks that count, and how many of them may miss."""
COARSE = sqrt(sqrt(2))  # ratio of the edges between which a latency is measured; see request_counts.EDGES_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """The prediction for the load of the hold step, and the measured latencies of the new servers.

    Latencies were measured in buckets: `measured` is the upper edge.
    """

    at: datetime
    rollout: str
    to: Mapping[Knob, Value]
    requests: int  # that were measured
    predicted: Mapping[str, Band]
    measured: Mapping[str, float]

    def inside(self) -> Mapping[str, bool]:
        """Whether each measured number lies within its band, by name."""
        return {name: _overlaps(name, self.predicted[name], value) for name, value in self._pairs()}

    def errors(self) -> Mapping[str, float]:
        """Of the predicted value: of a latency relative to the middle of its bucket, of a share in shares."""
        return {name: _error(name, self.predicted[name].value, value) for name, value in self._pairs()}

    @property
    def misses(self) -> bool:
        """Whether the time between tokens or TTFT lies outside its band."""
        return not all(good for name, good in self.inside().items() if name.endswith("_s"))

    def _pairs(self) -> Iterator[tuple[str, float]]:
        return ((name, value) for name, value in self.measured.items() if name in self.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawDrop:
    """A law of step time that is not used any more, as its predictions missed.

    The next one needs evidence from after `at`.
    """

    at: datetime
    why: str


def coverage(checks: Sequence[PredictionCheck]) -> Mapping[str, float]:
    """Share of the checks in which the measured number lay within the band, by name."""
    by_name: dict[str, list[bool]] = {}
    for check in checks:
        for name, is_inside in check.inside().items():
            by_name.setdefault(name, []).append(is_inside)
    return {name: sum(values) / len(values) for name, values in by_name.items()}


def bias(checks: Sequence[PredictionCheck]) -> Mapping[str, float]:
    """Mean error by name; above 0: predicted too large."""
    by_name: dict[str, list[float]] = {}
    for check in checks:
        for name, error in check.errors().items():
            by_name.setdefault(name, []).append(error)
    return {name: sum(values) / len(values) for name, values in by_name.items()}


def drop_law(checks: Sequence[PredictionCheck], before: LawDrop | None) -> LawDrop | None:
    """The latest drop of a law: a new one if too many predictions since the one `before` missed."""
    latest = [check for check in checks if before is None or check.at > before.at][-LATEST:]
    missed = [check for check in latest if check.misses]
    if len(missed) <= MOST_MISSED:
        return before
    numbers = "; ".join(f"{check.rollout}: {_describe_misses(check)}" for check in missed)
    return LawDrop(
        at=latest[-1].at,
        why=f"{len(missed)} of the last {len(latest)} predictions missed their bands ({numbers})",
    )


def describe_check(check: PredictionCheck) -> str:
    """One sentence with the numbers, for the audit."""
    inside = check.inside()
    parts = [
        f"{_describe_number(check, name)}{'' if is_inside else ', outside'}"
        for name, is_inside in inside.items()
    ]
    return f"{check.rollout}, {describe_changes(check.to)}, {check.requests} requests: {'; '.join(parts)}"


def _describe_misses(check: PredictionCheck) -> str:
    missed = (name for name, is_inside in check.inside().items() if name.endswith("_s") and not is_inside)
    return ", ".join(_describe_number(check, name) for name in missed)


def _describe_number(check: PredictionCheck, name: str) -> str:
    band, value = check.predicted[name], check.measured[name]
    low = _lower_edge(name, value)
    measured = f"{low:.3g} to {value:.3g}" if low < value else f"{value:.3g}"
    return f"{name} {band.value:.3g} ({band.low:.3g} to {band.high:.3g}) predicted, {measured} measured"


def _overlaps(name: str, band: Band, value: float) -> bool:
    return _lower_edge(name, value) <= band.high and value >= band.low


def _lower_edge(name: str, value: float) -> float:
    """Of the bucket in which a latency was measured; a share is exact."""
    return value / COARSE if name.endswith("_s") else value


def _error(name: str, predicted: float, value: float) -> float:
    if not name.endswith("_s"):
        return predicted - value
    return predicted / (value / sqrt(COARSE)) - 1
