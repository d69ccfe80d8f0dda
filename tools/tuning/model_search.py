"""Model-first search: the measured law predicts every point, and the best points are tried, best first.

The setting in force is tried first; its steps give the law. The search ends when a trial was as good as
predicted, when no point is predicted to gain more than its noise, or after MOST_TRIALS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.resample import with_redraws
from flettner.performance_model.search import ERRORS, LEAST_GAIN
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.trace import Trace
from flettner.tools.tuning.searches import Point, Tried, untried
from flettner.tools.tuning.space import Space
from flettner.tools.tuning.verdict import paired_gain

MOST_TRIALS = 3  # beside the setting in force


@dataclass(frozen=True, slots=True, kw_only=True)
class PointForecast:
    """The prediction of one point, in shares of the requests.

    `goodput`: of the recorded load. `gain`: over the setting in force, on this load and on redraws of it;
    `noise` is its standard error.
    """

    point: Point
    goodput: float
    gain: float
    noise: float

    @property
    def is_worth_a_trial(self) -> bool:
        return self.gain > max(LEAST_GAIN, ERRORS * self.noise)

    def is_like(self, other: "PointForecast") -> bool:
        """True if both serve all requests alike, as batches that are never full do."""
        return (self.goodput, self.gain, self.noise) == (other.goodput, other.gain, other.noise)


def forecast_all(space: Space, trace: Trace, law: StepLaw, goals: Goals) -> list[PointForecast]:
    """Predict every point, in the order of the space."""
    loads = with_redraws(trace)
    before = [_met(load, law, space.limits[0], goals) for load in loads]
    forecasts = []
    for point, limits in zip(space.points, space.limits, strict=True):
        after = [_met(load, law, limits, goals) for load in loads]
        gains = [fmean(new) - fmean(old) for old, new in zip(before, after, strict=True)]
        _, noise = paired_gain(trace, before[0], after[0])
        forecasts.append(PointForecast(point=point, goodput=fmean(after[0]), gain=fmean(gains), noise=noise))
    return forecasts


def _met(load: Trace, law: StepLaw, limits: EngineLimits, goals: Goals) -> list[float]:
    return [
        float(goals.are_met_by(request)) for request in ReplayedScheduler(load, law, limits).run().requests
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSearch:
    space: Space
    forecasts: Sequence[PointForecast]

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        if not tried:
            return self.space.points[0]
        if len(tried) > MOST_TRIALS or self._is_confirmed(tried):
            return None
        left = untried(self.space.points, tried)
        measured = [trial.point for trial in tried if trial.goodput is not None]
        tried_forecasts = [forecast for forecast in self.forecasts if forecast.point in measured]
        worth = [
            forecast
            for forecast in self.forecasts
            if forecast.is_worth_a_trial
            and forecast.point in left
            and not any(map(forecast.is_like, tried_forecasts))
        ]
        if not worth:
            return None
        most = max(forecast.gain for forecast in worth)
        level = [
            forecast for forecast in worth if forecast.gain >= most - max(LEAST_GAIN, ERRORS * forecast.noise)
        ]
        best = min(level, key=lambda forecast: (len(self.space.changes_to(forecast.point)), -forecast.gain))
        return best.point

    def _is_confirmed(self, tried: Sequence[Tried]) -> bool:
        """Return whether a trial gained at least half of the prediction."""
        own = next((trial.goodput for trial in tried if trial.point == self.space.points[0]), None)
        best = max((trial for trial in tried if trial.goodput is not None), key=_goodput, default=None)
        if best is None or own is None or best.point == self.space.points[0]:
            return False
        promised = self._by_point(best.point).gain
        return _goodput(best) - own >= promised / 2

    def _by_point(self, point: Point) -> PointForecast:
        return next(forecast for forecast in self.forecasts if forecast.point == point)


def _goodput(trial: Tried) -> float:
    return trial.goodput or 0.0
