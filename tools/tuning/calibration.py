"""Corrects a law by the first trial: what was predicted of it, and what was measured.

Two causes are separated. An engine that is slower than the law, by other work on the machine or by a
prior's error, is slower in all that it does, so the law is scaled until the mean time between tokens is
right. The API server and this client delay the first token and the last one alike: they change the TTFT
and leave the time between tokens as it is.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals, mean_gap_s
from flettner.performance_model.replayed_scheduler import EngineRun, ReplayedScheduler
from flettner.performance_model.step_law import StepLaw, UncertainLaw
from flettner.primitives.quantiles import quantile
from flettner.tools.tuning.session import TuningPlan

_MOST = 4.0  # times slower or faster; a prior is off by a factor of 0.7 to 1.5
_ROUNDS = 8  # of halving: to 1 %


def calibrate(
    law: UncertainLaw, plan: TuningPlan, limits: EngineLimits, measured: Mapping[str, float]
) -> tuple[UncertainLaw, Goals]:
    """Scale the law to the mean time between tokens of the first trial, and take the time outside the engine
    off the objectives."""
    gap_s = measured.get("itl_mean_s", 0.0)
    factor = _find_factor(law.law, plan, limits, gap_s) if gap_s > 0 else 1.0
    scaled = law.law.scaled(factor)
    run = ReplayedScheduler(plan.trace, scaled, limits).run()
    waits = sorted(
        request.first_s - request.arrival_s for request in run.requests if request.first_s is not None
    )
    outside_s = max(0.0, measured.get("ttft_p10_s", 0.0) - quantile(waits, 0.1)) if waits else 0.0
    return (
        replace(law, law=scaled, draws=tuple(draw.scaled(factor) for draw in law.draws)),
        plan.goals.inside(outside_s),
    )


def _find_factor(law: StepLaw, plan: TuningPlan, limits: EngineLimits, gap_s: float) -> float:
    """Find the factor by halving the range: longer steps make batches larger, which makes steps longer."""
    low, high = 1 / _MOST, _MOST
    for _ in range(_ROUNDS):
        middle = sqrt(low * high)
        is_slower = _mean_gap_s(ReplayedScheduler(plan.trace, law.scaled(middle), limits).run()) > gap_s
        low, high = (low, middle) if is_slower else (middle, high)
    return sqrt(low * high)


def _mean_gap_s(run: EngineRun) -> float:
    gaps = [
        mean_gap_s(request) for request in run.requests if request.produced > 1 and request.last_s is not None
    ]
    return sum(gaps) / max(1, len(gaps))
