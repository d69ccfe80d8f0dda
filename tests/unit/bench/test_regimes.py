"""The bench of regimes: where the load changes, the wrong setting is in force until the trigger holds."""

from collections.abc import Sequence
from random import Random

import pytest

from bench.regimes import CHAT, LABELS, SPAN_S, SPANS, WORLDS, Week, World, always, draw_load, follow
from flettner.agent.domain.regimes import Regime, RegimePlan
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.trace import Trace, TraceRequest
from flettner.vllm_facts.values import Setting

SMALL, LARGE = {"max_num_batched_tokens": 128}, {"max_num_batched_tokens": 2048}
PLAN = RegimePlan(
    metric="prompt_tokens",
    low=1000,
    high=2000,
    below=Regime(values=SMALL, missed=0.1),
    above=Regime(values=LARGE, missed=0.1),
)


def load(prompt: int) -> Trace:
    return (TraceRequest(arrival_s=0.0, prompt_tokens=prompt, output_tokens=1),)


def week(prompts: Sequence[int]) -> Week:
    world = World(name="test", mix=lambda _, __, ___: CHAT)
    law = StepLaw(step_us=1000, knee=0, token_us=1000, sequence_us=0, kv_read_us=0)
    loads = [load(100)] * (2 * SPANS) + [load(prompt) for prompt in prompts]
    return Week(world, loads, law, EngineLimits(kv_blocks=10_000), Goals(ttft_s=1.0))


def test_a_change_of_the_load_takes_six_minutes_to_follow() -> None:
    setting_of, switches = follow(week([100, 3000, 3000, 1500, 100]), PLAN)
    first = 2 * SPANS

    assert switches == [first + 1, first + 4]
    assert setting_of(first + 1) == [(SMALL, 360 / SPAN_S), (LARGE, 1 - 360 / SPAN_S)]
    assert setting_of(first + 2) == setting_of(first + 3) == [(LARGE, 1.0)]


def test_only_the_days_after_the_learning_count() -> None:
    half: Setting = {"max_num_seqs": 1}

    assert week([100, 3000]).attained(always(half)) == pytest.approx(0.5)


def test_loads_are_the_same_each_time_and_labels_have_one_token() -> None:
    first, again = (draw_load(CHAT, Random(1)) for _ in range(2))  # noqa: S311 - reproducible, not secret
    labels = draw_load(LABELS, Random(1))  # noqa: S311 - reproducible, not secret

    assert first == again
    assert {request.output_tokens for request in labels} == {1}
    assert len({world.name for world in WORLDS}) == len(WORLDS)
