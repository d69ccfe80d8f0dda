"""The highest rate within the objectives, now and after each suggestion."""

from dataclasses import replace

import pytest

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.prediction.capacity import CapacityRequest, CardRequest, predict_capacity, predict_on_card
from flettner.agent.prediction.what_if import WhatIfRequest, predict_what_if
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep
from tests.support.learned import deployment, learned_model

LEARNED = learned_model(1.0, seconds=200.0, max_num_seqs=8)
SLO = Slo(ttft=Objective(under_s=1.0, share=0.9))
RATES = GpuRates(per_hour=3.6)
ROOMY = learned_model(1.0, seconds=200.0, max_num_seqs=64)
SUGGESTED = (("chat-s1", {"max_num_seqs": 64}), ("chat-s2", {"enforce_eager": True}))


def test_each_suggestion_has_the_capacity_of_its_flags() -> None:
    answer = predict_capacity(CapacityRequest(learned=LEARNED, slo=SLO, suggested=SUGGESTED, rates=RATES))
    asked = predict_what_if(WhatIfRequest(learned=LEARNED, slo=SLO, changes={"max_num_seqs": 64}))

    more, kernels = answer.suggestions
    assert answer.share == 0.9
    assert (more.suggestion, dict(more.to)) == SUGGESTED[0]
    assert answer.now.rate_rps is not None
    assert more.rate_rps is not None
    assert asked.capacity is not None
    assert asked.then_capacity is not None
    assert answer.now.rate_rps.value == pytest.approx(asked.capacity.rate_rps)
    assert more.rate_rps.value == pytest.approx(asked.then_capacity.rate_rps)
    assert more.rate_rps.low > answer.now.rate_rps.high
    assert kernels.why_not == "the effect of enforce_eager is not modelled"


def test_the_cost_is_that_of_the_good_requests_at_that_rate() -> None:
    """3.6 an hour are 0.001 a second; 90 % of the requests are good."""
    now = predict_capacity(CapacityRequest(learned=LEARNED, slo=SLO, rates=RATES)).now

    assert now.rate_rps is not None
    assert now.cost_per_thousand_good_requests is not None
    assert now.cost_per_thousand_good_requests.value == pytest.approx(1 / (0.9 * now.rate_rps.value))
    assert now.cost_per_thousand_good_requests.low == pytest.approx(1 / (0.9 * now.rate_rps.high))


def test_another_layout_has_a_capacity_by_the_data_sheets() -> None:
    """Four engines carry four times the requests, at the same cost; two GPUs have more room for KV."""
    layouts = ({"data_parallel_size": 4}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2})
    suggested = tuple((f"chat-s{place}", to) for place, to in enumerate(layouts))

    answer = predict_capacity(CapacityRequest(learned=ROOMY, slo=SLO, suggested=suggested, rates=RATES))

    four, two, pipeline = answer.suggestions
    assert answer.now.rate_rps is not None
    assert four.rate_rps is not None
    assert two.rate_rps is not None
    assert four.rate_rps.value == pytest.approx(4 * answer.now.rate_rps.value)
    assert four.cost_per_thousand_good_requests is not None
    assert answer.now.cost_per_thousand_good_requests is not None
    assert four.cost_per_thousand_good_requests.value == pytest.approx(
        answer.now.cost_per_thousand_good_requests.value
    )
    assert two.rate_rps.low > answer.now.rate_rps.high
    assert "data sheets, usually within 15 %" in two.extrapolation
    assert pipeline.why_not == "the effect of pipeline_parallel_size is not modelled"


def test_a_layout_or_a_card_that_does_not_hold_the_model_has_none() -> None:
    wide = replace(
        LEARNED, config=replace(LEARNED.config, setting={**LEARNED.config.setting, "tensor_parallel_size": 2})
    )

    answer = predict_capacity(
        CapacityRequest(learned=wide, slo=SLO, suggested=(("chat-s1", {"tensor_parallel_size": 1}),))
    )

    assert answer.suggestions[0].rate_rps is not None
    with pytest.raises(PredictionInputError, match="T4"):
        predict_on_card(CardRequest(learned=LEARNED, slo=SLO, card="Tesla T4"))


def test_a_faster_card_carries_more() -> None:
    now = predict_capacity(CapacityRequest(learned=ROOMY, slo=SLO)).now.rate_rps
    faster = predict_on_card(CardRequest(learned=ROOMY, slo=SLO, card="H100"))

    assert now is not None
    assert faster is not None
    assert faster.low > now.high


def test_a_rate_far_from_the_recorded_one_is_less_certain() -> None:
    assert LEARNED.law is not None
    narrow = replace(LEARNED, law=replace(LEARNED.law, fitted_to=LargestStep(tokens=2048, sequences=8)))
    many = replace(
        narrow, config=replace(narrow.config, setting={**narrow.config.setting, "max_num_seqs": 256})
    )

    answer = predict_capacity(CapacityRequest(learned=many, slo=SLO))

    now = answer.now
    assert "sequences are predicted from steps of at most 8" in now.extrapolation
    assert "times the recorded one" in now.extrapolation
    assert now.rate_rps is not None
    assert now.certain_rps is not None
    assert now.certain_rps < now.rate_rps.value
    assert now.certain_rps >= answer.rate_rps


def test_a_rate_that_is_near_is_certain_up_to_the_capacity() -> None:
    now = predict_capacity(CapacityRequest(learned=learned_model(3.0), slo=SLO)).now

    assert now.rate_rps is not None
    assert (now.extrapolation, now.certain_rps) == ("", now.rate_rps.value)


def test_an_objective_that_nothing_meets_has_no_capacity() -> None:
    slo = Slo(itl=Objective(under_s=0.001, share=0.95))

    assert predict_capacity(CapacityRequest(learned=LEARNED, slo=slo)).now.rate_rps is None


def test_without_an_objective_it_says_what_is_missing() -> None:
    with pytest.raises(PredictionInputError, match="no latency is promised"):
        predict_capacity(CapacityRequest(learned=LEARNED, slo=Slo()))


def test_a_layout_that_has_just_changed_is_not_predicted_from_the_load_of_the_one_before() -> None:
    two = replace(ROOMY, config=deployment({"max_num_seqs": 64, "data_parallel_size": 2}))

    with pytest.raises(PredictionInputError, match="not of 2 engines yet"):
        predict_capacity(CapacityRequest(learned=two, slo=SLO))


def test_a_server_of_four_engines_carries_four_times_what_one_does() -> None:
    """The trace is of one engine: every eighth request of two such servers."""
    four = replace(ROOMY, servers=8, config=deployment({"max_num_seqs": 64, "data_parallel_size": 4}))
    suggested = (("chat-s1", {"max_num_seqs": 8}), ("chat-s2", {"data_parallel_size": 2}))
    request = CapacityRequest(learned=ROOMY, slo=SLO, suggested=suggested[:1], rates=RATES)

    one = predict_capacity(request)
    answer = predict_capacity(replace(request, learned=four, suggested=suggested))

    fewer, half = answer.suggestions
    assert (answer.servers, answer.gpus) == (2, 4)
    assert answer.rate_rps == pytest.approx(4 * one.rate_rps)
    assert one.now.rate_rps is not None
    assert one.suggestions[0].rate_rps is not None
    assert answer.now.rate_rps == one.now.rate_rps.times(4)
    assert answer.now.cost_per_thousand_good_requests == one.now.cost_per_thousand_good_requests
    assert fewer.rate_rps == one.suggestions[0].rate_rps.times(4)
    assert half.rate_rps is not None
    assert half.rate_rps.value == pytest.approx(2 * one.now.rate_rps.value)
