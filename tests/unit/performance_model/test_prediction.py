"""Predictions with bands, headroom, and the search for a better setting."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, hypot
from random import Random
from statistics import pstdev

import pytest

from flettner.performance_model.band import draws_quantile
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, veto
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.outcome import Goals, attainment, measure
from flettner.performance_model.prediction import HIGH, LOW, REPLICATES, find_headroom, predict
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.resample import scale_rate
from flettner.performance_model.search import (
    Changes,
    SearchResult,
    allow_all,
    neighbours,
    paired_gain,
    search,
)
from flettner.performance_model.step_law import FORM_ERROR, StepLaw, UncertainLaw, widen, with_error
from flettner.performance_model.trace import mean_rate
from flettner.vllm_facts.values import Value
from tests.support.learned import LAW, deployment
from tests.support.learned import requests_at as load

UNCERTAIN = widen(LAW, common=0.1, each=0.05, count=8, seed=1)
LIMITS = EngineLimits(kv_blocks=2588)
GOALS = Goals(ttft_s=1.0, itl_s=0.04)


def test_a_band_encloses_what_other_loads_of_the_kind_measure() -> None:
    bands = predict(load(2.0), UncertainLaw(law=LAW, draws=UNCERTAIN.draws), LIMITS, GOALS)

    for seed in (7, 8, 9):
        other = measure(ReplayedScheduler(load(2.0, seed=seed), LAW, LIMITS).run(), GOALS)
        for name in ("ttft_p50_s", "itl_mean_s", "e2e_mean_s"):
            assert 0.85 * bands[name].low < other[name] < 1.15 * bands[name].high


def test_a_known_load_leaves_only_the_law_uncertain() -> None:
    certain = UncertainLaw(law=LAW, draws=(LAW,))
    bands = predict(load(2.0), certain, LIMITS, GOALS, is_load_known=True)
    other = predict(load(2.0), certain, LIMITS, GOALS)

    assert all(band.low == band.value == band.high for band in bands.values())
    assert other["ttft_p90_s"].low < other["ttft_p90_s"].high


def test_an_uncertain_law_widens_the_band() -> None:
    narrow, wide = (
        predict(load(2.0), widen(LAW, common=sigma, each=0.0, count=8, seed=1), LIMITS, GOALS)["itl_mean_s"]
        for sigma in (0.0, 0.3)
    )

    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_the_same_seed_predicts_the_same() -> None:
    assert predict(load(2.0), UNCERTAIN, LIMITS, GOALS, seed=3) == predict(
        load(2.0), UNCERTAIN, LIMITS, GOALS, seed=3
    )


def test_the_headroom_is_the_rate_at_which_the_goals_break() -> None:
    trace = load(1.0)
    headroom = find_headroom(trace, LAW, LIMITS, GOALS)

    assert headroom.rate_per_s is not None
    factor = headroom.rate_per_s / (len(trace) / trace[-1].arrival_s)
    below, above = (
        attainment(ReplayedScheduler(scale_rate(trace, factor * times), LAW, LIMITS).run(), GOALS)
        for times in (0.98, 1.05)
    )
    assert below >= GOALS.share > above
    assert headroom.replicas == 1


def test_a_load_beyond_one_server_needs_several() -> None:
    headroom = find_headroom(load(12.0, seconds=120.0), LAW, LIMITS, GOALS)

    assert headroom.rate_per_s is not None
    assert headroom.replicas is not None
    assert abs(headroom.replicas - 12.0 / headroom.rate_per_s) <= 1.5


def test_goals_that_no_load_meets_have_no_headroom() -> None:
    headroom = find_headroom(load(1.0), LAW, LIMITS, Goals(itl_s=0.001))

    assert (headroom.rate_per_s, headroom.replicas) == (None, None)


def search_from(
    seqs: int,
    rate: float,
    also: Sequence[Changes] = (),
    refuse: Callable[[Changes], str] = allow_all,
) -> SearchResult:
    present = deployment({"max_num_seqs": seqs, "max_num_batched_tokens": 2048})
    return search(present, load(rate), UNCERTAIN, GOALS, kv_tokens=41_408, also=also, refuse=refuse)


def test_the_search_raises_a_batch_that_is_too_small() -> None:
    result = search_from(8, 2.0)

    assert result.best is not None
    assert result.best.changes["max_num_seqs"] in {16, 32, 64}
    assert result.gain > 0.2
    assert result.likely > 0.8
    assert set(result.best.changes) == {"max_num_seqs"}


def test_the_search_changes_nothing_where_all_goes_well() -> None:
    result = search_from(128, 0.5)

    assert result.best is None
    assert result.base > 0.98


def test_the_search_changes_nothing_where_nothing_helps() -> None:
    result = search(deployment({}), load(2.0), UNCERTAIN, Goals(itl_s=0.001), kv_tokens=41_408)

    assert (result.best, result.base, result.gain) == (None, 0.0, 0.0)


def test_the_search_tries_what_others_propose() -> None:
    result = search_from(
        8,
        2.0,
        also=({"max_num_seqs": 40},),
        refuse=lambda changes: "" if changes == {"max_num_seqs": 40} else "only what was proposed",
    )

    assert result.best is not None
    assert dict(result.best.changes) == {"max_num_seqs": 40}
    assert result.tried == 1


@pytest.mark.parametrize("cap", [16, 24, 32, 64])
def test_of_settings_as_good_as_each_other_the_one_that_is_suggested_stays(cap: int) -> None:
    result = search_from(8, 1.2, also=({"max_num_seqs": cap},))

    assert result.best is not None
    assert dict(result.best.changes) == {"max_num_seqs": cap}


def test_a_suggestion_that_is_worse_gives_way() -> None:
    result = search_from(8, 2.0, also=({"max_num_seqs": 4},))

    assert result.best is not None
    assert result.best.changes["max_num_seqs"] in {16, 32, 64}


def test_a_batch_that_the_kv_cache_holds_is_tried_where_requests_are_preempted() -> None:
    refused: list[dict[str, Value]] = []

    def refuse(changes: Changes) -> str:
        refused.append(dict(changes))
        return "none"

    for rate in (0.2, 2.0):
        refused.clear()
        trace = load(rate, seconds=600.0, prompt=300, output=900)
        search(deployment({"max_num_seqs": 256}), trace, UNCERTAIN, GOALS, kv_tokens=20_000, refuse=refuse)
        caps = [changes["max_num_seqs"] for changes in refused if changes.keys() == {"max_num_seqs"}]
        between = [cap for cap in caps if isinstance(cap, int) and cap & (cap - 1)]

        assert len(between) == (0 if rate < 1 else 2)
        assert all(4 < cap < 30 for cap in between)


def test_all_neighbours_differ_from_the_setting_in_force() -> None:
    base = limits_of(deployment({"max_num_seqs": 64}))
    near = [dict(changes) for changes in neighbours(deployment({"max_num_seqs": 64}), base)]

    assert {} not in near
    assert all(changes == near[near.index(changes)] for changes in near)
    assert {"max_num_seqs": 128} in near
    assert {"max_num_seqs": 32, "max_num_batched_tokens": 4096} in near


def test_what_vllm_would_refuse_is_vetoed() -> None:
    small = EngineLimits(kv_blocks=100, max_model_len=8192)

    assert "does not hold" in veto(deployment({}), small)
    assert "below" in veto(deployment({"max_num_seqs": 512, "max_num_batched_tokens": 256}), LIMITS)
    assert veto(deployment({}), LIMITS) == ""


def test_pairs_tell_apart_what_two_loads_cannot() -> None:
    faster = StepLaw(step_us=16_500, knee=111, token_us=80.0, sequence_us=40.0, kv_read_us=0.14)
    before, after = (ReplayedScheduler(load(4.0), law, LIMITS).run() for law in (LAW, faster))
    other = ReplayedScheduler(load(4.0, seed=5), LAW, LIMITS).run()

    gain, noise = paired_gain(before, after, GOALS)

    assert gain > noise > 0
    assert abs(attainment(other, GOALS) - attainment(before, GOALS)) > noise


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"speculative_config": '{"method": "ngram"}'}, "speculative decoding"),
        ({"data_parallel_size": 2}, "data_parallel_size"),
        ({"scheduling_policy": "priority"}, "priority"),
        ({"gpu_memory_utilization": 0.5}, "vLLM would not start"),
    ],
)
def test_what_is_not_modelled_is_refused(setting: dict[str, Value], why: str) -> None:
    with pytest.raises(PredictionInputError, match=why):
        limits_of(deployment(setting))


def test_limits_follow_the_flags() -> None:
    limits = limits_of(
        deployment(
            {
                "max_num_seqs": 64,
                "watermark": 0.01,
                "enable_prefix_caching": False,
                "num_gpu_blocks_override": 900,
            }
        )
    )

    assert (limits.max_num_seqs, limits.watermark, limits.enable_prefix_caching) == (64, 0.01, False)
    assert (limits.kv_blocks, limits.max_num_batched_tokens, limits.max_model_len) == (900, 2048, 8192)


def test_what_a_running_server_refutes_vetoes_nothing() -> None:
    """The estimate of memory is wrong for this server: it runs with a longer context than fits by it."""
    running = deployment({"max_model_len": 131_072, "max_num_seqs": 8})
    limits = limits_of(running, kv_tokens=200_000)

    assert veto(running, limits)
    assert not veto(running, limits, running)


@pytest.mark.parametrize("rate", [4.0, 8.0, 16.0])
def test_servers_are_counted_for_requests_that_a_proxy_scatters(rate: float) -> None:
    """So it takes as many as the rate asks for, or more."""
    trace = load(rate, seconds=200.0)
    headroom = find_headroom(trace, LAW, LIMITS, GOALS)

    assert headroom.rate_per_s is not None
    assert headroom.replicas is not None
    assert headroom.replicas * headroom.rate_per_s >= (mean_rate(trace) or 0.0)


def test_requests_that_come_at_once_have_no_rate() -> None:
    trace = tuple(replace(request, arrival_s=0.0) for request in load(2.0, seconds=60.0))
    headroom = find_headroom(trace, LAW, LIMITS, GOALS)
    numbers = predict(trace, UNCERTAIN, LIMITS, GOALS)

    assert mean_rate(trace) is None
    assert headroom.rate_per_s is None
    assert headroom.replicas is not None
    assert "goodput_per_s" not in numbers
    assert numbers["tokens_per_s"].value > 0


def test_a_band_of_few_draws_includes_its_value() -> None:
    """The latency is the same for the load as recorded, and mostly not for four other draws of it."""
    bursts = tuple(replace(request, arrival_s=30.0 * (request.arrival_s // 30.0)) for request in load(4.0))
    for seed in range(5):
        for band in predict(bursts, UNCERTAIN, LIMITS, GOALS, replicates=4, seed=seed).values():
            assert band.low <= band.value <= band.high


@pytest.mark.parametrize("count", [8, 12, 24])
def test_a_band_of_few_draws_holds_80_percent_of_what_comes(count: int) -> None:
    random, inside, tries = Random(1), 0, 4000  # noqa: S311 - reproducible, not secret
    for _ in range(tries):
        drawn = sorted(random.gauss(0.0, 1.0) for _ in range(count))
        inside += draws_quantile(drawn, LOW) <= random.gauss(0.0, 1.0) <= draws_quantile(drawn, HIGH)

    assert inside / tries == pytest.approx(0.8, abs=0.03)


def test_a_law_is_as_uncertain_as_its_predictions_were_off() -> None:
    law = StepLaw(step_us=18_000, knee=96, token_us=80)
    certain = UncertainLaw(law=law, draws=(law,) * 400)

    uncertain = with_error(certain, (0.05, -0.03, 0.05, -0.05, 0.06))  # mean 0.016, its error 0.021

    steps_us = [draw.step_us for draw in uncertain.draws]
    assert pstdev(steps_us) / 18_000 == pytest.approx(hypot(0.026, FORM_ERROR), rel=0.1)
    assert all(draw.token_us / draw.step_us == pytest.approx(80 / 18_000) for draw in uncertain.draws)
    assert with_error(certain, ()) == certain


def test_a_band_of_a_dozen_draws_reaches_as_far_below_as_above() -> None:
    law = StepLaw(step_us=18_000, knee=96, token_us=80)
    uncertain = with_error(UncertainLaw(law=law, draws=(law,) * REPLICATES), (0.1,))

    itl = predict(load(2.0), uncertain, LIMITS, GOALS, is_load_known=True)["itl_mean_s"]

    assert itl.high / itl.value == pytest.approx(itl.value / itl.low, rel=0.02)
    assert itl.high / itl.value == pytest.approx(exp(1.28 * hypot(0.1, FORM_ERROR)), rel=0.03)


def test_the_bands_of_ttft_are_as_wide_as_its_errors_of_windows() -> None:
    law = UncertainLaw(law=StepLaw(step_us=18_000, knee=96, token_us=80))
    uncertain = with_error(law, (), (0.2, 0.1, 0.15, 0.15, 0.15))

    sure, unsure = (
        predict(load(2.0), estimate, LIMITS, GOALS, is_load_known=True) for estimate in (law, uncertain)
    )

    assert uncertain.wait_error == pytest.approx(0.151, abs=0.001)
    assert sure["ttft_p99_s"].low == sure["ttft_p99_s"].high
    assert unsure["ttft_p99_s"].value == sure["ttft_p99_s"].value
    assert unsure["ttft_p99_s"].high / unsure["ttft_p99_s"].low > 1.2
    assert unsure["itl_mean_s"].low == pytest.approx(unsure["itl_mean_s"].high)
    assert unsure["e2e_mean_s"].low < unsure["e2e_mean_s"].high


def test_an_error_of_ttft_that_the_steps_explain_counts_once() -> None:
    law = UncertainLaw(law=StepLaw(step_us=18_000, token_us=80))

    assert with_error(law, (0.1, 0.1), (0.1, 0.1)).wait_error == 0.0
