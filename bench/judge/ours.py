"""The production code of the judge on ticks: open, pend, widen and close a stream as agent.judge does."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from math import log

from bench.judge.traffic import TICK_S, Pair, Tick
from flettner.agent.domain.calibration import Calibration, CalibrationWindow
from flettner.agent.domain.canary_evidence import CanaryEvidence, EProcessPair, EvidenceStream, Observation
from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.canary.clients import log_worse
from flettner.agent.judge.canary.evidence import buffer_counts, close_tick, close_wide_tick
from flettner.agent.judge.eprocess import log_sum
from flettner.agent.judge.failure_modes import open_streams

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SLO = Slo(errors=0.99)
STEP = Step(weight=25, requests=1, at_least_s=0.0, at_most_s=1e9, parity=25)
RECORD = 2000  # requests of blue before the canary
SURE = log(100.0)  # P(false rollback) <= 1 %


@cache
def arm(requests: int, bad: int) -> RequestCounts:
    return RequestCounts(total=requests, errors=bad)


def calibrated(before: Iterable[Tick]) -> Calibration | None:
    """Calibrate on the servers of blue with flettner.agent.domain.calibration."""
    steadiness, at = CalibrationWindow(), NOON
    for _, blue in before:
        steadiness.add(at, {f"blue {number}": arm(*counts) for number, counts in enumerate(blue)})
        at += timedelta(seconds=TICK_S)
    return steadiness.calibration("errors", at)


class Evidence:
    """One stream of one rollout. `usual`: share of bad requests in the baseline."""

    def __init__(
        self,
        calibration: Calibration | None,
        *,
        usual: float = 0.01,
        margin: float | None = None,
        one_lens: bool = False,
    ) -> None:
        calibrations = {"errors": calibration} if calibration else {}
        self.evidence = CanaryEvidence(calibration=calibrations, tick_s=TICK_S)
        self.baseline = arm(RECORD, round(RECORD * usual))
        streams = open_streams(
            self.evidence, step=STEP, slo=SLO, control=self.baseline, margin=self.evidence.margin
        )
        self.stream: EvidenceStream = next(stream for stream in streams if stream.name == "errors")
        if margin is not None:
            self.stream = replace(self.stream, margin=margin, tolerance=2 * margin)
        if one_lens:
            self.stream = replace(self.stream, ticks=None)
        self.ticks = 0

    def update(self, tick: Tick) -> float:
        """Return log E that green is worse, after this tick."""
        green, blue = tick
        self.ticks += 1
        arms = {f"blue {number}": arm(*counts) for number, counts in enumerate(blue)}
        second = Observation(at=NOON, green=arm(*green), blue=arms)
        evidence = CanaryEvidence(
            calibration=self.evidence.calibration, tick_s=TICK_S, all_s=TICK_S * self.ticks
        )
        stream = close_wide_tick(buffer_counts(self.stream, second, SLO, against=True), evidence)
        self.stream = close_tick(stream, evidence, STEP, SLO, self.baseline, against=True)
        return log_worse(self.stream)

    @property
    def log_not_worse(self) -> float:
        """Return the maximum so far."""
        return self.stream.requests.most_below

    @property
    def log_from_the_start(self) -> float:
        """Return log E without the mixture over start times."""
        logs = [_first(lens) for lens in (self.stream.requests, self.stream.ticks) if lens is not None]
        return log_sum(logs) - log(len(logs))


def independent(phi: float = 1.0) -> Calibration:
    """Return the calibration of servers with independent failures."""
    return Calibration(phi=phi, tick_edge=0.04, tick_share=0.04, tick_phi=1.0, tick_requests=30.0, ticks=2880)


def _first(lens: EProcessPair) -> float:
    return log_sum(lens.above) - log(len(lens.above)) if lens.above else 0.0


def taken_back(evidence: Evidence, ticks: Sequence[Tick]) -> int | None:
    """Return the number of the tick, from 1, at which green is rolled back."""
    return next((number for number, tick in enumerate(ticks, 1) if evidence.update(tick) >= SURE), None)


def greens(ticks: Sequence[Tick]) -> list[Pair]:
    return [green for green, _ in ticks]


def blues(ticks: Sequence[Tick]) -> list[Pair]:
    """Sum over all servers."""
    return [(sum(n for n, _ in blue), sum(k for _, k in blue)) for _, blue in ticks]
