"""The advice of the performance model: the best joint change inside the bounds, or nothing, and why."""

from dataclasses import replace

import pytest

from flettner.agent.domain.cost import GpuRates, cost_of_change
from flettner.agent.domain.model import Bound, Objective, Outcome, Slo
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.model_search import ModelSearchRequest, search_settings
from flettner.agent.prediction.served_load import UNKNOWN_RATES
from flettner.vllm_facts.values import Setting
from tests.support.fast_time import NOON
from tests.support.learned import learned_model, without_law

SLO = Slo(ttft=Objective(under_s=1.0, share=0.95), itl=Objective(under_s=0.06, share=0.95))
BOUNDS = {
    "max_num_seqs": Bound(min=1, max=1024, octaves=3),
    "max_num_batched_tokens": Bound(min=256, max=32768, octaves=5),
    "gpu_memory_utilization": Bound(min=0.5, max=0.92),
}


def ask(
    learned: LearnedModel,
    *,
    slo: Slo = SLO,
    bounds: dict[str, Bound] | None = None,
    outcomes: tuple[Outcome, ...] = (),
    suggested: tuple[tuple[str, Setting], ...] = (),
    rates: GpuRates = UNKNOWN_RATES,
) -> ModelSearchResult | None:
    return search_settings(
        ModelSearchRequest(
            learned=learned,
            slo=slo,
            at=NOON,
            bounds=BOUNDS if bounds is None else bounds,
            outcomes=outcomes,
            suggested=suggested,
            rates=rates,
        )
    )


def test_it_raises_a_batch_that_is_too_small_and_predicts_what_that_brings() -> None:
    advice = ask(learned_model(2.0, max_num_seqs=4))

    assert advice is not None
    assert advice.best is not None
    assert set(advice.best.to) == {"max_num_seqs"}
    assert advice.best.gain.low > 0.02
    assert advice.then["ttft_p90_s"].value < 0.5 * advice.present["ttft_p90_s"].value
    assert advice.best_capacity is not None
    assert advice.capacity.rate_rps is not None
    assert advice.best_capacity.rate_rps is not None
    assert advice.best_capacity.rate_rps > 1.5 * advice.capacity.rate_rps


def test_it_stays_inside_the_bounds_and_the_size_of_a_step() -> None:
    small = {**BOUNDS, "max_num_seqs": Bound(min=1, max=8, octaves=3)}
    one_octave = {**BOUNDS, "max_num_seqs": Bound(min=1, max=1024, octaves=1)}

    for bounds in (small, one_octave):
        advice = ask(learned_model(0.8, seconds=600.0, max_num_seqs=4), bounds=bounds)
        assert advice is not None
        assert advice.best is not None
        assert advice.best.to["max_num_seqs"] == 8


def test_it_does_not_advise_again_what_a_rollout_refuted() -> None:
    first = ask(learned_model(2.0, max_num_seqs=4))
    assert first is not None
    assert first.best is not None
    outcome = Outcome(at=NOON, result="rolled_back", to=first.best.to, why="green was slower")

    second = ask(learned_model(2.0, max_num_seqs=4), outcomes=(outcome,))

    assert second is not None
    assert second.best is None or second.best.to != first.best.to


def test_it_advises_nothing_where_all_goes_well_and_says_up_to_which_rate() -> None:
    advice = ask(learned_model(1.0, max_num_seqs=256))

    assert advice is not None
    assert advice.best is None
    assert "nothing to gain" in advice.why_nothing
    assert advice.capacity.rate_rps is not None
    assert advice.capacity.rate_rps > 1.0
    assert advice.capacity.servers == 1


def test_it_counts_the_servers_where_no_setting_of_one_carries_the_load() -> None:
    advice = ask(learned_model(8.0, seconds=130.0, max_num_seqs=256))

    assert advice is not None
    assert not advice.reaches_goal
    capacity_rps = (advice.best_capacity or advice.capacity).rate_rps
    assert capacity_rps is not None
    assert advice.servers is not None
    assert abs(advice.servers - 8.0 / capacity_rps) <= 1.5


def test_with_several_servers_it_counts_those_for_the_load_of_all() -> None:
    alone = ask(learned_model(5.0, seconds=130.0, max_num_seqs=256))
    shared = ask(replace(learned_model(5.0, seconds=130.0, max_num_seqs=256), servers=2))

    assert alone is not None
    assert shared is not None
    assert alone.servers is not None
    assert shared.servers is not None
    assert 2 * alone.servers - 2 <= shared.servers <= 2 * alone.servers + 1


def test_it_judges_what_rules_suggest() -> None:
    advice = ask(
        learned_model(1.0, max_num_seqs=8),
        suggested=(
            ("Q1", {"max_num_seqs": 16}),
            ("K2", {"max_num_seqs": 2}),
            ("G1", {"enforce_eager": False}),
        ),
    )

    assert advice is not None
    up, down = advice.rules  # a flag of the kernels is not modelled
    assert (up.rule, down.rule) == ("Q1", "K2")
    assert up.gain.low > 0 > down.gain.high


def test_without_a_law_an_objective_or_traffic_there_is_no_advice() -> None:
    learned = learned_model(2.0, max_num_seqs=4)

    assert ask(without_law(learned)) is None
    assert ask(learned, slo=Slo()) is None
    assert ask(replace(learned, trace=learned.trace[:20])) is None


def test_the_same_model_gives_the_same_advice() -> None:
    assert ask(learned_model(2.0, max_num_seqs=4)) == ask(learned_model(2.0, max_num_seqs=4))


def test_a_suggested_layout_has_the_cost_of_its_gpus() -> None:
    """Over PCIe two GPUs compute the same tokens of a load that one carries: they cost twice as much."""
    learned = replace(learned_model(0.6, tensor_parallel_size=2), kv_tokens=200_000)
    suggested: tuple[tuple[str, Setting], ...] = (
        ("D9", {"tensor_parallel_size": 1}),
        ("D9", {"tensor_parallel_size": 1, "data_parallel_size": 2}),
    )

    advice = ask(learned, suggested=suggested, rates=GpuRates(per_hour=2.5))

    assert advice is not None
    one, two = (cost_of_change(advice, to) for _, to in suggested)
    assert one is not None
    assert two is not None
    now, then, both = (costs["cost_per_million_tokens"].value for costs in (one.now, one.then, two.then))
    assert then == pytest.approx(now / 2, rel=0.1)
    assert both == pytest.approx(now, rel=0.15)
