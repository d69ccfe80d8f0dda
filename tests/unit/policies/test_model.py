"""Rules PM1, PM2 and PM3: what the performance model proposes, and when it keeps silent."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.model_search import Capacity, ModelSearchResult, PredictedChange
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Health, Reading, Workload
from flettner.performance_model.band import Band
from flettner.policies.conformance.readings import NOON, a_context, a_reading, late
from flettner.policies.model import Model
from flettner.rules.precedence import ranked
from tests.support.proposals import rules

SETTING = {"max_num_seqs": 8}
LATE = a_reading(running=8, waiting=12, ttft=late(0.6, p50=0.4, p99=9.0))


def about(value: float) -> Band:
    return Band(value=value, low=0.9 * value, high=1.1 * value)


ADVICE = ModelSearchResult(
    made_at=NOON - timedelta(seconds=60),
    setting=SETTING,
    rate_rps=5.0,
    requests=3_000,
    law_source="iteration log",
    itl_error=0.03,
    ttft_error=0.12,
    wanted=0.95,
    present={"attainment": about(0.4), "goodput_per_s": about(2.0), "ttft_p90_s": about(6.0)},
    best=PredictedChange(to={"max_num_seqs": 64}, gain=Band(value=0.58, low=0.55, high=0.61)),
    then={"attainment": about(0.98), "goodput_per_s": about(4.9), "ttft_p90_s": about(0.3)},
    capacity=Capacity(rate_rps=3.0, servers=2),
    best_capacity=Capacity(rate_rps=9.0, servers=1),
    tried=40,
)
NOTHING = replace(
    ADVICE,
    best=None,
    then={},
    best_capacity=None,
    why_nothing="the best of 40 settings changes nothing",
    capacity=Capacity(rate_rps=2.1, servers=3),
)


def context(result: ModelSearchResult | None, setting: dict[str, int] | None = None) -> Context:
    return replace(a_context(SETTING if setting is None else setting), model_search=result)


def propose(result: ModelSearchResult | None, reading: Reading = LATE) -> dict[str, Proposal]:
    return {proposal.rule: proposal for proposal in Model().propose(reading, context(result))}


def test_the_best_change_is_proposed_with_its_numbers_before_and_after() -> None:
    (change,) = propose(ADVICE).values()

    assert (change.rule, dict(change.to)) == ("PM1", {"max_num_seqs": 64})
    assert "40.0% meet the objectives with the present flags and 98.0% (88.2% to 107.8%)" in change.why
    assert change.expects.startswith("TTFT (90 %) 6.00 s → 300 ms (270 ms to 330 ms)")
    assert "up to 9.00 requests/s, at present up to 3.00 requests/s" in change.expects
    assert "3% on the time between tokens and 12% on TTFT" in change.risks
    assert {evidence.metric: evidence.value for evidence in change.evidence}["gain_low"] == 0.55


def test_a_change_far_from_the_fitted_steps_says_so_among_its_risks() -> None:
    far = replace(ADVICE, extrapolation="steps of up to 64 sequences are predicted from steps of at most 8")

    assert "; steps of up to 64 sequences are predicted" in propose(far)["PM1"].risks


@pytest.mark.parametrize(
    ("result", "reading"),
    [
        pytest.param(None, LATE, id="no law"),
        pytest.param(replace(ADVICE, setting={"max_num_seqs": 16}), LATE, id="for other flags"),
        pytest.param(replace(ADVICE, made_at=NOON - timedelta(hours=1)), LATE, id="old"),
        pytest.param(ADVICE, replace(LATE, coverage=0.5), id="scrapes are missing"),
        pytest.param(ADVICE, replace(LATE, ttft=late(0.0)), id="no objective is missed"),
        pytest.param(
            replace(NOTHING, capacity=Capacity(rate_rps=2.1, servers=None)), LATE, id="nothing helps"
        ),
    ],
)
def test_nothing_is_proposed(result: ModelSearchResult | None, reading: Reading) -> None:
    assert not propose(result, reading)


def test_where_only_more_servers_help_it_says_how_many() -> None:
    (note,) = propose(NOTHING).values()

    assert (note.rule, note.klass) == ("PM2", "note")
    assert note.expects == "capacity: 3 servers like this one"
    assert note.why.startswith("3 servers carry the 5.00 requests/s within the objectives, one carries 2.10")


def test_a_change_that_is_not_enough_comes_with_the_number_of_servers() -> None:
    partly = replace(
        ADVICE,
        then={**ADVICE.then, "attainment": about(0.7)},
        best_capacity=Capacity(rate_rps=3.5, servers=2),
    )

    assert set(propose(partly)) == {"PM1", "PM2"}


def test_a_change_that_carries_far_less_than_arrives_is_not_proposed() -> None:
    partly = replace(ADVICE, best_capacity=Capacity(rate_rps=3.3, servers=2), then={"attainment": about(0.7)})
    queued = replace(LATE, health=Health(ended={"stop": 60.0}), work=Workload(lasting_arrivals_per_s=5.0))

    assert set(propose(partly, queued)) == {"PM2"}


def test_what_it_contradicts_is_named_with_the_predicted_loss() -> None:
    worse = PredictedChange(to={"max_num_seqs": 4}, gain=Band(value=-0.2, low=-0.25, high=-0.15), rule="K2")
    unclear = PredictedChange(
        to={"max_num_seqs": 16}, gain=Band(value=-0.01, low=-0.05, high=0.03), rule="Q1"
    )

    proposals = propose(replace(ADVICE, rules=(worse, unclear)))

    assert "K2 kv-cache-full suggests max_num_seqs 4: -20.0 points, -25.0 to -15.0" in proposals["PM1"].why
    assert "Q1 queue-cap-too-low suggests max_num_seqs 16: -1.0 points" in proposals["PM1"].why
    assert "contradicts K2 kv-cache-full" in proposals["PM3"].why
    assert "Q1" not in proposals["PM3"].why


def test_it_does_not_compare_with_its_own_open_suggestion() -> None:
    own = PredictedChange(to={"max_num_seqs": 4}, gain=Band(value=-0.2, low=-0.25, high=-0.15), rule="PM1")

    proposals = propose(replace(ADVICE, rules=(own,)))

    assert set(proposals) == {"PM1"}
    assert "PM1" not in proposals["PM1"].why


def test_it_comes_before_the_rule_that_only_knows_a_direction() -> None:
    change = propose(ADVICE)["PM1"]
    rule = replace(change, rule="Q1", to={"max_num_seqs": 16})

    ordered = ranked([rule, change])

    assert rules(ordered.winners) == ["PM1"]
    assert [lost.what.rule for lost in ordered.outranked] == ["Q1"]
