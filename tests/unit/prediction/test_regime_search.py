"""Two settings for two kinds of load where that gains enough, and nothing where one setting does as well."""

from collections.abc import Mapping
from dataclasses import replace

from flettner.agent.domain.model import Bound, Objective, Outcome, Slo
from flettner.agent.domain.regimes import RegimeAdvice
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.regime_search import RegimeRequest, search_regimes
from flettner.performance_model.load_mixes import TwoMixes
from flettner.performance_model.trace import Trace
from flettner.vllm_facts.values import Knob
from tests.support.fast_time import NOON
from tests.support.learned import learned_model, requests_at, without_law

BUDGET = "max_num_batched_tokens"
SLO = Slo(ttft=Objective(under_s=3.0, share=0.95), itl=Objective(under_s=0.026, share=0.95))
BOUNDS = {BUDGET: Bound(min=128, max=8192, octaves=6)}
HOT = {BUDGET: (64.0, 4096.0)}
LEARNED = replace(learned_model(max_num_seqs=64, max_num_batched_tokens=2048), kv_tokens=160_000)
CHATS = requests_at(3.0, seconds=130.0, prompt=800)
MIXES = TwoMixes(
    metric="prompt_tokens",
    low=1300,
    high=2000,
    below_tokens=1100,
    above_tokens=3400,
    above_share=0.5,
    above_hours=(22, 23),
    days=7,
)


def labels(rate: float = 2.6) -> Trace:
    """Long prompts, of which one token is asked."""
    return tuple(
        replace(request, output_tokens=1)
        for request in requests_at(rate, seconds=130.0, prompt=2500, output=1, seed=4)
    )


def ask(
    *,
    learned: LearnedModel = LEARNED,
    above: Trace | None = None,
    slo: Slo = SLO,
    hot: Mapping[Knob, tuple[float, float]] = HOT,
    bounds: Mapping[Knob, Bound] = BOUNDS,
    outcomes: tuple[Outcome, ...] = (),
    cold: bool = False,
    changes_a_day: float = 2.0,
) -> RegimeAdvice | None:
    return search_regimes(
        RegimeRequest(
            learned=learned,
            slo=slo,
            at=NOON,
            mixes=replace(MIXES, changes_a_day=changes_a_day),
            below=CHATS,
            above=labels() if above is None else above,
            hot=hot,
            bounds=bounds,
            outcomes=outcomes,
            cold=cold,
        )
    )


def test_chats_get_small_steps_and_long_prompts_large_ones() -> None:
    advice = ask()

    assert advice is not None
    assert advice.plan.below.values == {BUDGET: 128}
    assert advice.plan.above.values == {BUDGET: 2048}
    assert advice.attainment > 1.15 * advice.single_attainment
    assert advice.gain.low > 0.05
    assert 0 <= advice.plan.below.missed < 0.2


def test_nothing_is_advised_where_one_setting_serves_both_loads() -> None:
    assert ask(above=labels(1.0)) is None


def test_only_limits_that_running_servers_change_within_the_bounds_and_a_step_are_tried() -> None:
    one_octave = {BUDGET: Bound(min=128, max=8192)}
    advice = ask(bounds=one_octave)

    assert ask(hot={"watermark": (0.0, 0.5)}) is None
    assert ask(hot={BUDGET: (1024.0, 2048.0)}) is None
    assert advice is None or advice.plan.below.values == {BUDGET: 1024}


def test_values_that_a_rollout_refuted_are_left_out() -> None:
    refuted = Outcome(at=NOON, result="rolled_back", to={BUDGET: 128})
    advice = ask(outcomes=(refuted,))

    assert advice is None or advice.plan.below.values != {BUDGET: 128}


def test_nothing_is_advised_without_a_law_or_an_objective() -> None:
    assert ask(learned=without_law(LEARNED)) is None
    assert ask(slo=Slo()) is None


def test_a_restart_for_each_switch_is_worth_a_large_gain_and_one_turn_a_day() -> None:
    advice = ask(cold=True)

    assert advice is not None
    assert advice.plan.cold
    assert advice.gain.value > 0.15 * advice.single_attainment
    assert ask(cold=True, changes_a_day=6.0) is None
    few = labels(1.0)
    assert ask(cold=True, above=few) is None
