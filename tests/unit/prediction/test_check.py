"""The model is held to its predictions: the comparison, its record, and when a law is dropped."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.audit.entries import build_entry
from flettner.agent.domain.events import PredictionChecked
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.prediction_check import (
    PredictionCheck,
    bias,
    coverage,
    describe_check,
    drop_law,
)
from flettner.agent.domain.reading import Request
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.prediction.check import CheckRequest, check_prediction
from flettner.performance_model.band import Band
from flettner.performance_model.engine_settings import limits_of
from flettner.performance_model.outcome import mean_gap_s
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from tests.support.fast_time import NOON
from tests.support.learned import LAW, deployment, learned_model
from tests.support.machine_stories import World

SLO = Slo(ttft=Objective(under_s=1.0, share=0.95))
LEARNED = learned_model(1.0, seconds=600.0, max_num_seqs=8)
TO = {"max_num_seqs": 32}


def served(*, slower: float = 1.0) -> RequestCounts:
    """What the new setting does to the trace; every latency `slower` times as long as the law says."""
    case = deployment({"max_num_seqs": 32})
    run = ReplayedScheduler(LEARNED.trace, LAW, limits_of(case, kv_tokens=LEARNED.kv_tokens)).run()
    requests = [
        Request(
            server="chat-r1",
            outcome="ok",
            status=200,
            ttft_s=slower * ((request.first_s or 0.0) - request.arrival_s),
            duration_s=slower
            * ((request.first_s or 0.0) - request.arrival_s + mean_gap_s(request) * (request.produced - 1)),
            tokens=request.produced,
        )
        for request in run.requests
    ]
    return count_requests(requests, SLO)


def compare(counts: RequestCounts, to: dict[str, int | bool] | None = None) -> PredictionCheck | None:
    return check_prediction(
        CheckRequest(
            learned=LEARNED, slo=SLO, at=NOON, rollout="chat-o1", to=to or TO, counts=counts, held_s=600.0
        )
    )


def test_a_setting_that_does_as_predicted_lies_in_its_bands() -> None:
    check = compare(served())

    assert check is not None
    assert check.inside() == {"attainment": True, "ttft_p90_s": True, "itl_p90_s": True}
    assert not check.misses
    assert all(abs(error) < 0.15 for error in check.errors().values())
    assert describe_check(check).startswith("chat-o1, max_num_seqs 32, ")


def test_a_setting_that_is_half_as_fast_lies_outside() -> None:
    check = compare(served(slower=2.0))

    assert check is not None
    assert check.misses
    assert check.errors()["itl_p90_s"] < -0.3
    assert "measured, outside" in describe_check(check)


@pytest.mark.parametrize("to", [{"enforce_eager": True}, {"max_num_seqs": 32, "enforce_eager": True}])
def test_what_is_not_modelled_is_not_compared(to: dict[str, int | bool]) -> None:
    assert compare(served(), to) is None


def test_few_requests_are_not_compared() -> None:
    assert compare(RequestCounts(total=10)) is None


def a_check(itl_s: float, number: int = 1) -> PredictionCheck:
    return PredictionCheck(
        at=NOON + timedelta(hours=number),
        rollout=f"chat-o{number}",
        to=TO,
        requests=500,
        predicted={"itl_p90_s": Band(value=0.03, low=0.027, high=0.033)},
        measured={"itl_p90_s": itl_s},
    )


def test_the_record_counts_hits_and_the_mean_error() -> None:
    checks = [a_check(0.03), a_check(0.03), a_check(0.06)]

    assert coverage(checks)["itl_p90_s"] == pytest.approx(2 / 3)
    assert bias(checks)["itl_p90_s"] < 0


def checks_of(results: str) -> list[PredictionCheck]:
    """`x`: missed."""
    return [a_check(0.06 if result == "x" else 0.03, number) for number, result in enumerate(results, 1)]


@pytest.mark.parametrize("results", ["xx...", "x.x...x", "xx....xx"])
def test_two_misses_of_five_are_what_bands_of_80_percent_allow(results: str) -> None:
    assert drop_law(checks_of(results), None) is None


def test_three_misses_of_five_drop_the_law_and_say_by_how_much() -> None:
    checks = checks_of(".xx.x")

    drop = drop_law(checks, None)

    assert drop is not None
    assert drop.at == checks[-1].at
    assert "3 of the last 5 predictions missed" in drop.why
    assert "chat-o3: itl_p90_s 0.03 (0.027 to 0.033) predicted, 0.0505 to 0.06 measured" in drop.why
    assert "chat-o4" not in drop.why


def test_the_next_law_is_not_blamed_for_the_misses_of_the_one_before() -> None:
    checks = checks_of("xxxxxx")
    first = drop_law(checks[:3], None)

    assert first is not None
    assert drop_law(checks[:5], first) == first
    assert drop_law(checks, first) != first


def test_the_drop_is_part_of_the_state_and_of_the_audit() -> None:
    *first, last = (PredictionChecked(at=check.at, check=check) for check in checks_of("xxx"))
    world = World().start().feed(*first)
    before = world.state
    world.feed(last)
    entry = build_entry(before, world.state, last, ())

    assert world.state.law_drop is not None
    assert entry.action == "prediction.checked"
    assert "law dropped: 3 of the last 3 predictions missed their bands" in entry.why


def test_a_law_that_is_gone_is_compared_with_nothing() -> None:
    request = CheckRequest(
        learned=replace(LEARNED, law=None),
        slo=SLO,
        at=NOON,
        rollout="chat-o1",
        to=TO,
        counts=served(),
        held_s=600.0,
    )

    assert check_prediction(request) is None
