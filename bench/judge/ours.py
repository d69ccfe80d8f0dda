"""The judge's own code on ticks: a stream as agent.judge opens it, pends, widens and closes it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from math import log

from agent.domain.calibration import Calibration, CalibrationWindow
from agent.domain.model import Slo, Step
from agent.domain.request_counts import RequestCounts
from agent.domain.trial import EProcessPair, EvidenceStream, Observation, Trial
from agent.judge.eprocess import log_sum
from agent.judge.evidence import buffer_counts, close_tick, close_wide_tick, log_worse
from agent.judge.failure_modes import open_streams
from bench.judge.traffic import TICK_S, Pair, Tick

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SLO = Slo(errors=0.99)
STEP = Step(weight=25, requests=1, at_least_s=0.0, at_most_s=1e9, parity=25)
RECORD = 2000  # requests of blue's before the canary
SURE = log(100.0)  # P(false take-back) <= 1 %


@cache
def arm(requests: int, bad: int) -> RequestCounts:
    return RequestCounts(total=requests, errors=bad)


def calibrated(before: Iterable[Tick]) -> Calibration | None:
    """As the daemon learns it from blue's servers: agent.domain.calibration."""
    steadiness, at = CalibrationWindow(), NOON
    for _, blue in before:
        steadiness.add(at, {f"blue {number}": arm(*counts) for number, counts in enumerate(blue)})
        at += timedelta(seconds=TICK_S)
    return steadiness.calibration("errors", at)


class Evidence:
    """One stream of one rollout. `usual`: blue's share of bad requests in its record."""

    def __init__(
        self,
        calibration: Calibration | None,
        *,
        usual: float = 0.01,
        margin: float | None = None,
        one_lens: bool = False,
    ) -> None:
        known = {"errors": calibration} if calibration else {}
        self.trial = Trial(calibration=known, tick_s=TICK_S)
        self.record = arm(RECORD, round(RECORD * usual))
        found = open_streams(self.trial, step=STEP, slo=SLO, control=self.record, margin=self.trial.margin)
        self.stream: EvidenceStream = next(stream for stream in found if stream.name == "errors")
        if margin is not None:
            self.stream = replace(self.stream, margin=margin, tolerance=2 * margin)
        if one_lens:
            self.stream = replace(self.stream, ticks=None)
        self.heard = 0

    def update(self, tick: Tick) -> float:
        """log E that green is worse, after this tick."""
        green, blue = tick
        self.heard += 1
        arms = {f"blue {number}": arm(*counts) for number, counts in enumerate(blue)}
        second = Observation(at=NOON, green=arm(*green), blue=arms)
        trial = Trial(calibration=self.trial.calibration, tick_s=TICK_S, all_s=TICK_S * self.heard)
        stream = close_wide_tick(buffer_counts(self.stream, second, SLO, against=True), trial)
        self.stream = close_tick(stream, trial, STEP, SLO, self.record, against=True)
        return log_worse(self.stream)

    @property
    def log_not_worse(self) -> float:
        """The most that there was."""
        return self.stream.requests.most_good

    @property
    def log_from_the_start(self) -> float:
        """What log E would be without the mixture over start times."""
        logs = [_first(lens) for lens in (self.stream.requests, self.stream.ticks) if lens is not None]
        return log_sum(logs) - log(len(logs))


def independent(phi: float = 1.0) -> Calibration:
    """What would be known of servers whose requests fail each by itself."""
    return Calibration(phi=phi, tick_edge=0.04, tick_share=0.04, tick_phi=1.0, tick_requests=30.0, ticks=2880)


def _first(lens: EProcessPair) -> float:
    return log_sum(lens.worse) - log(len(lens.worse)) if lens.worse else 0.0


def taken_back(evidence: Evidence, ticks: Sequence[Tick]) -> int | None:
    """The number of the tick, from 1, with which green goes back."""
    return next((number for number, tick in enumerate(ticks, 1) if evidence.update(tick) >= SURE), None)


def greens(ticks: Sequence[Tick]) -> list[Pair]:
    return [green for green, _ in ticks]


def blues(ticks: Sequence[Tick]) -> list[Pair]:
    """Of all its servers together."""
    return [(sum(n for n, _ in blue), sum(k for _, k in blue)) for _, blue in ticks]
