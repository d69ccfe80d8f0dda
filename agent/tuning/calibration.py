"""Estimates the time that the engine's log leaves out, from the first trial: predicted and measured.

vLLM logs the wait for the result of a step. Output handling, the API server and this client come on top: a
part of each token's time, and a part of each request's.
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.tuning.session import TuningPlan
from performance_model.engine import Engine, EngineRun
from performance_model.engine_limits import EngineLimits
from performance_model.outcome import Goals, mean_gap_s, quantile
from performance_model.step_law import StepLaw, UncertainLaw

_ROUNDS = 3  # a longer step makes batches larger, which makes steps longer
_LEAST = 0.2  # smallest share of the fitted constant that remains


def calibrate(
    law: UncertainLaw, plan: TuningPlan, limits: EngineLimits, measured: Mapping[str, float]
) -> tuple[UncertainLaw, Goals]:
    """The law with the mean time between tokens of the first trial, and what is left of the objectives when
    the time outside the engine is taken off."""
    found = law.law
    for _ in range(_ROUNDS):
        gap_s = _mean_gap_s(Engine(plan.trace, found, limits).run())
        found = _longer(found, 1e6 * (measured.get("itl_mean_s", gap_s) - gap_s))
    more_us = found.step_us - law.law.step_us
    run = Engine(plan.trace, found, limits).run()
    waits = sorted(one.first_s - one.arrival_s for one in run.requests if one.first_s is not None)
    outside_s = max(0.0, measured.get("ttft_p10_s", 0.0) - quantile(waits, 0.1)) if waits else 0.0
    return (
        replace(law, law=found, draws=tuple(_longer(draw, more_us) for draw in law.draws)),
        replace(
            plan.goals,
            ttft_s=_less(plan.goals.ttft_s, outside_s),
            e2e_s=_less(plan.goals.e2e_s, outside_s),
        ),
    )


def _longer(law: StepLaw, more_us: float) -> StepLaw:
    return replace(law, step_us=max(_LEAST * law.step_us, law.step_us + more_us))


def _less(limit_s: float | None, outside_s: float) -> float | None:
    return None if limit_s is None else max(0.0, limit_s - outside_s)


def _mean_gap_s(run: EngineRun) -> float:
    gaps = [mean_gap_s(one) for one in run.requests if one.produced > 1 and one.last_s is not None]
    return sum(gaps) / max(1, len(gaps))
