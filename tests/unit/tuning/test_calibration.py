"""The first trial corrects the law: a slower engine, and time outside of it."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals, measure
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.step_law import StepLaw, UncertainLaw
from flettner.performance_model.trace import Trace, TraceRequest
from flettner.primitives.quantiles import quantile
from flettner.tools.tuning.calibration import calibrate
from flettner.tools.tuning.session import TuningPlan
from flettner.vllm_facts.shell_command.serve_command import ServeCommand

LAW = StepLaw(step_us=1000.0, token_us=30.0, sequence_us=80.0)
LIMITS = EngineLimits(kv_blocks=4096, max_num_seqs=64, max_num_batched_tokens=2048)
OUTSIDE_S = 0.02


def load() -> Trace:
    random = Random(1)  # noqa: S311 - reproducible, not secret
    return tuple(
        TraceRequest(arrival_s=at / 40, prompt_tokens=random.randint(10, 600), output_tokens=60)
        for at in range(1200)
    )


PLAN = TuningPlan(
    command=ServeCommand(argv=("vllm", "serve")),
    trace=load(),
    goals=Goals(ttft_s=0.1, itl_s=0.01),
    out=Path(),
    budget_s=0.0,
    logs_steps=True,
)


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.25])
def test_a_slower_engine_and_the_time_outside_of_it_are_told_apart(slower: float) -> None:
    run = ReplayedScheduler(PLAN.trace, LAW.scaled(slower), LIMITS).run()
    waits = sorted((scaled.first_s or 0.0) - scaled.arrival_s for scaled in run.requests)
    measured = {"itl_mean_s": measure(run, PLAN.goals)["itl_mean_s"], "ttft_p10_s": quantile(waits, 0.1)}

    law, goals = calibrate(
        UncertainLaw(law=LAW, draws=(LAW,)),
        PLAN,
        LIMITS,
        {**measured, "ttft_p10_s": measured["ttft_p10_s"] + OUTSIDE_S},
    )

    assert law.law.step_us == pytest.approx(slower * LAW.step_us, rel=0.02)
    assert law.draws == (law.law,)
    assert goals.itl_s == PLAN.goals.itl_s
    assert goals.ttft_s == pytest.approx(0.1 - OUTSIDE_S, abs=0.001)
    small = replace(LIMITS, max_num_batched_tokens=128)
    predicted, true = (
        measure(ReplayedScheduler(PLAN.trace, scaled, small).run(), PLAN.goals)["itl_mean_s"]
        for scaled in (law.law, LAW.scaled(slower))
    )
    assert predicted == pytest.approx(true, rel=0.05)


def test_without_a_measured_time_between_tokens_the_law_stays() -> None:
    law, goals = calibrate(UncertainLaw(law=LAW), PLAN, LIMITS, {})

    assert law.law == LAW
    assert goals == PLAN.goals
