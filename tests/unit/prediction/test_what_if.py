"""What other flags, faster requests or longer prompts would do."""

from dataclasses import replace

import pytest

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.prediction import what_if
from flettner.agent.prediction.served_load import LEAST_REQUESTS, MOST_REQUESTS, find_load, latest_part
from flettner.agent.prediction.what_if import (
    CURVE,
    WhatIf,
    WhatIfRequest,
    modelled_flags,
    predict_what_if,
)
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.vllm_facts.values import Setting
from tests.support.learned import learned_model, requests_at, without_law

LEARNED = learned_model(1.0, max_num_seqs=8)
SLO = Slo(ttft=Objective(under_s=1.0, share=0.95))


def ask(changes: Setting | None = None, *, rate: float = 1.0, prompt: float = 1.0, slo: Slo = SLO) -> WhatIf:
    return predict_what_if(
        WhatIfRequest(learned=LEARNED, slo=slo, changes=changes or {}, rate=rate, prompt=prompt)
    )


def test_more_sequences_shorten_a_queue_and_carry_more() -> None:
    answer = ask({"max_num_seqs": 64})

    assert answer.then["ttft_p90_s"].value < 0.8 * answer.now["ttft_p90_s"].value
    assert answer.capacity is not None
    assert answer.then_capacity is not None
    assert (answer.then_capacity.rate_rps or 0) > 1.5 * (answer.capacity.rate_rps or 0)
    assert [round(point.rate_rps / answer.rate_rps, 6) for point in answer.curve] == list(CURVE)


def test_without_a_change_nothing_changes() -> None:
    answer = ask()

    assert answer.then == answer.now
    assert all(point.now == point.then for point in answer.curve)


def test_faster_requests_and_longer_prompts_wait_longer() -> None:
    faster, longer = ask(rate=1.5), ask(prompt=2.0)

    for answer in (faster, longer):
        assert answer.then["ttft_p90_s"].value > answer.now["ttft_p90_s"].value
    assert faster.curve[0].rate_rps == pytest.approx(1.5 * CURVE[0] * faster.rate_rps, rel=1e-6)


def test_the_cost_is_that_of_the_replayed_rates() -> None:
    """3.6 an hour are 0.001 a second; the power is that of the recorded load alone."""
    rates = GpuRates(per_hour=3.6, power_w=400.0)
    same, faster = (
        predict_what_if(WhatIfRequest(learned=LEARNED, slo=SLO, changes={}, rate=rate, rates=rates))
        for rate in (1.0, 2.0)
    )

    assert same.now["cost_per_million_tokens"].value == pytest.approx(1e3 / same.now["tokens_per_s"].value)
    good = "cost_per_thousand_good_requests"
    assert same.now[good].value == pytest.approx(1 / same.now["goodput_per_s"].value)
    assert same.now["tokens_per_joule"].value == pytest.approx(same.now["tokens_per_s"].value / 400)
    assert "tokens_per_joule" not in faster.then
    assert "tokens_per_joule" in faster.now
    assert all(point.now[good].value > 0 for point in same.curve if good in point.now)
    assert same.curve[0].now[good].value > same.curve[2].now[good].value  # it idles more


def test_what_vllm_would_refuse_is_said() -> None:
    assert "max_num_batched_tokens" in ask({"max_num_seqs": 4096, "max_num_batched_tokens": 2048}).warning


def test_what_is_far_from_the_fitted_steps_and_the_recorded_rate_is_said() -> None:
    assert LEARNED.law is not None
    fitted = replace(LEARNED.law, fitted_to=LargestStep(tokens=2048, sequences=8))
    narrow = replace(LEARNED, law=fitted)

    answer = predict_what_if(WhatIfRequest(learned=narrow, slo=SLO, changes={"max_num_seqs": 256}, rate=8.0))

    assert "sequences are predicted from steps of at most 8" in answer.extrapolation
    assert "the rate is 8 times the recorded one" in answer.extrapolation
    assert "tokens" not in answer.extrapolation
    near = predict_what_if(WhatIfRequest(learned=narrow, slo=SLO, changes={"max_num_seqs": 16}))
    assert near.extrapolation == ""


def test_without_objectives_latencies_remain() -> None:
    answer = ask(slo=Slo())

    assert answer.capacity is None
    assert "attainment" not in answer.now
    assert answer.now["ttft_p90_s"].low <= answer.now["ttft_p90_s"].high


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (WhatIfRequest(learned=without_law(LEARNED), slo=SLO, changes={}), "only 3 windows of steps"),
        (WhatIfRequest(learned=replace(LEARNED, trace=LEARNED.trace[:9]), slo=SLO, changes={}), "9 requests"),
        (
            WhatIfRequest(learned=LEARNED, slo=SLO, changes={"enforce_eager": True}),
            "enforce_eager: its effect",
        ),
        (WhatIfRequest(learned=LEARNED, slo=SLO, changes={"max_num_seqs": 0}), "is at least 1, not 0"),
        (WhatIfRequest(learned=LEARNED, slo=SLO, changes={"max_num_seqs": "many"}), "whole number, not many"),
        (
            WhatIfRequest(learned=LEARNED, slo=SLO, changes={"gpu_memory_utilization": 1.5}),
            "is at most 1, not 1.5",
        ),
        (WhatIfRequest(learned=LEARNED, slo=SLO, changes={}, rate=0.0), "rate: must be a factor"),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_the_reason(request_: WhatIfRequest, why: str) -> None:
    with pytest.raises(PredictionInputError, match=why):
        predict_what_if(request_)


@pytest.mark.slow
def test_the_modelled_flags_are_those_that_can_be_predicted() -> None:
    flags = modelled_flags(LEARNED)

    assert flags["max_num_seqs"] == 8
    assert flags["gpu_memory_utilization"] == 0.9
    assert "max_model_len" not in flags
    few = replace(LEARNED, trace=requests_at(0.5, seconds=140.0))
    for knob, value in flags.items():
        predict_what_if(WhatIfRequest(learned=few, slo=SLO, changes={knob: value}))


def test_a_high_rate_is_predicted_by_the_latest_requests() -> None:
    load = find_load(learned_model(40.0, seconds=130.0, max_num_seqs=256), SLO)

    assert len(load.trace) == MOST_REQUESTS
    assert load.rate_rps == pytest.approx(40.0, rel=0.1)


@pytest.mark.slow
def test_a_setting_that_takes_long_to_compute_is_predicted_from_the_latest_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of 3,000 tokens takes 24 steps of 128 tokens."""
    monkeypatch.setattr(what_if, "MOST_EVENTS", 4_000)
    long = replace(LEARNED, trace=requests_at(4.0, seconds=130.0, prompt=3000, output=100))
    changes: Setting = {"max_num_seqs": 64, "max_num_batched_tokens": 128}

    answer = predict_what_if(WhatIfRequest(learned=long, slo=SLO, changes=changes))

    assert LEAST_REQUESTS <= answer.requests < 0.8 * len(long.trace)
    assert f"only the latest {answer.requests:,} of {len(long.trace):,} requests" in answer.extrapolation
    assert answer.rate_rps == pytest.approx(4.0, rel=0.2)
    load = find_load(long, SLO)
    shown = ReplayedScheduler(
        latest_part(load.trace, answer.requests), load.law.law, load.limits_with(changes)
    )
    assert shown.ended_within(2 * what_if.MOST_EVENTS) == answer.requests


def test_a_run_that_is_not_finished_says_how_many_requests_ended() -> None:
    load = find_load(LEARNED, SLO)
    ended = [
        ReplayedScheduler(load.trace, load.law.law, load.present).ended_within(events)
        for events in (0, 200, 99_999)
    ]

    assert ended[0] == 0 < ended[1] < ended[2] == len(load.trace)
