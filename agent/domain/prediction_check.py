"""A prediction beside what was measured of a rollout, and the record of such checks. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import sqrt

from performance_model.band import Band
from vllm_facts.values import Knob, Value, describe_changes

KEPT = 20  # checks
LATEST, MOST_MISSED = 5, 2  # of the latest checks, so many may miss: bands hold 80 % of what comes
COARSE = sqrt(sqrt(2))  # ratio of the edges between which a latency is measured; see request_counts.EDGES_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """What was predicted for the load that came to the new servers while they were held, and what they did.

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


def coverage(checks: Sequence[PredictionCheck]) -> Mapping[str, float]:
    """Share of the checks in which the measured number lay within the band, by name; 0.8 is promised."""
    found: dict[str, list[bool]] = {}
    for check in checks:
        for name, is_inside in check.inside().items():
            found.setdefault(name, []).append(is_inside)
    return {name: sum(values) / len(values) for name, values in found.items()}


def bias(checks: Sequence[PredictionCheck]) -> Mapping[str, float]:
    """Mean error by name; above 0: predicted too large."""
    found: dict[str, list[float]] = {}
    for check in checks:
        for name, error in check.errors().items():
            found.setdefault(name, []).append(error)
    return {name: sum(values) / len(values) for name, values in found.items()}


def why_not_believed(checks: Sequence[PredictionCheck]) -> str:
    """Why the model gives no advice: too many of the latest bands missed; empty if it is believed."""
    missed = [check.rollout for check in checks[-LATEST:] if check.misses]
    if len(missed) <= MOST_MISSED:
        return ""
    return f"{len(missed)} of the last {LATEST} predictions missed their bands: {', '.join(missed)}"


def describe_check(check: PredictionCheck) -> str:
    """One sentence with the numbers, for the audit."""
    inside = check.inside()
    parts = [
        f"{name} {check.predicted[name].value:.3g} ({check.predicted[name].low:.3g} to "
        f"{check.predicted[name].high:.3g}) predicted, {value:.3g} measured"
        f"{'' if inside[name] else ', outside'}"
        for name, value in check.measured.items()
        if name in inside
    ]
    return f"{check.rollout}, {describe_changes(check.to)}, {check.requests} requests: {'; '.join(parts)}"


def _overlaps(name: str, band: Band, value: float) -> bool:
    low = value / COARSE if name.endswith("_s") else value
    return low <= band.high and value >= band.low


def _error(name: str, predicted: float, value: float) -> float:
    if not name.endswith("_s"):
        return predicted - value
    return predicted / (value / sqrt(COARSE)) - 1
