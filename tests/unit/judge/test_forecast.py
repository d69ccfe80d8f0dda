"""Forecast of the time to a verdict, and the plan for the observed traffic."""

from dataclasses import replace

import pytest

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.model import Forecast, Plan, PreflightResult, Step
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.machine.default_plan import follow_evidence, plan_for
from tests.support.machine_stories import PLAN as SHORT
from tests.unit.judge.test_judge import CALM, INDEPENDENT, SLO, served

PLAN = replace(
    SHORT,
    steps=(
        Step(weight=5, requests=20, at_least_s=30, at_most_s=600),
        Step(weight=50, requests=100, at_least_s=60, at_most_s=2700),
        Step(weight=100, requests=200, at_least_s=1800, at_most_s=7200),
    ),
)


def forecast_of(rate_rps: float, plan: Plan = PLAN, spread: Calibration = INDEPENDENT) -> Forecast:
    total = round(rate_rps * 100)
    forecast = AnytimeJudge().forecast(
        plan,
        slo=SLO,
        recent=served(total, errors=total // 100),
        rate_rps=rate_rps,
        calibration=dict.fromkeys(CALM, spread),
    )
    assert forecast is not None
    return forecast


def test_more_traffic_shortens_the_forecast() -> None:
    spans = [forecast_of(rate).usual_s for rate in (0.5, 2, 8, 32)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > 4 * spans[2]


def test_a_failure_rate_of_one_percent_takes_about_a_thousand_requests_next_to_blue() -> None:
    parity = replace(PLAN, steps=(replace(PLAN.steps[1], weight=25, parity=25, requests=1), PLAN.steps[2]))
    requests = forecast_of(8, parity).usual_s * 8 * 0.25
    assert 700 < requests < 1500  # 967 in canary.md 4.5


def test_the_design_effect_multiplies_the_forecast() -> None:
    plain, clumped = forecast_of(8), forecast_of(8, spread=replace(INDEPENDENT, phi=4.0))
    assert 2 < clumped.usual_s / plain.usual_s < 4.5


def test_a_forecast_that_is_too_long_names_a_margin_that_fits() -> None:
    forecast = forecast_of(0.5)
    assert forecast.too_long == (5, 50)
    parity = replace(PLAN, steps=PLAN.steps[1:])
    forecast = forecast_of(0.5, parity)
    assert forecast.too_long == (50,)
    assert forecast.fitting_margin is not None
    wider = forecast_of(0.5, replace(parity, margin=forecast.fitting_margin))
    assert wider.too_long == ()


def test_without_traffic_there_is_no_forecast() -> None:
    assert AnytimeJudge().forecast(PLAN, slo=SLO, recent=served(0), rate_rps=1.0, calibration={}) is None


@pytest.mark.parametrize(
    ("rate", "weights"),
    [(None, [5, 50, 100]), (8.0, [5, 50, 100]), (0.5, [14, 50, 100]), (0.1, [50, 100])],
)
def test_a_first_share_is_large_enough_for_the_traffic(rate: float | None, weights: list[int]) -> None:
    plan = plan_for(PLAN, PreflightResult(strategy="surge"), 1, rate)
    assert [step.weight for step in plan.steps] == weights


def test_beside_a_failing_blue_the_shares_are_larger_and_shorter() -> None:
    surge = PreflightResult(strategy="surge")
    first, two, hold = plan_for(PLAN, surge, 1, 5.0, failing=True).steps
    assert (first.weight, first.requests, first.at_least_s) == (25, 10, 15.0)
    assert (two.weight, two.requests, two.at_least_s) == (50, 20, 20.0)
    assert hold == PLAN.steps[-1]
    assert [s.weight for s in plan_for(PLAN, surge, 3, 5.0, failing=True).steps] == [12, 25, 75]
    assert [s.weight for s in plan_for(PLAN, PreflightResult(strategy="swap"), 1, failing=True).steps] == [
        100
    ]


def test_shares_that_an_operator_wrote_are_an_upper_bound() -> None:
    surge = PreflightResult(strategy="surge")
    own = replace(PLAN, own_shares=True, steps=(replace(PLAN.steps[0], weight=1), *PLAN.steps[1:]))
    first, two, _ = plan_for(own, surge, 1, 0.5, failing=True).steps
    assert (first.weight, first.requests, first.at_least_s) == (1, 10, 15.0)
    assert (two.weight, two.requests, two.at_least_s) == (50, 20, 20.0)
    assert plan_for(own, surge, 1, 0.5).steps == own.steps


def test_beside_a_failing_blue_a_share_that_a_low_rate_makes_long_is_left_out() -> None:
    surge = PreflightResult(strategy="surge")
    slow, quick = (plan_for(PLAN, surge, 1, rate, failing=True).steps for rate in (0.3, 0.7))

    assert [step.weight for step in slow] == [50, 100]
    assert [step.weight for step in quick] == [25, 50, 100]


def test_without_quick_shares_a_failing_blue_changes_nothing() -> None:
    surge = PreflightResult(strategy="surge")
    assert plan_for(replace(PLAN, quick=False), surge, 1, 5.0, failing=True).steps == PLAN.steps


def test_until_the_first_share_the_plan_follows_the_evidence_and_no_share_grows() -> None:
    surge = PreflightResult(strategy="surge")
    approved, quick = (plan_for(PLAN, surge, 1, 5.0, failing=failing) for failing in (False, True))

    later = follow_evidence(approved, PLAN, surge, 1, 5.0, failing=True)
    assert [(step.weight, step.requests) for step in later.steps] == [(5, 10), (50, 20), (100, 200)]
    later = follow_evidence(quick, PLAN, surge, 1, 5.0, failing=False)
    assert [(step.weight, step.requests) for step in later.steps] == [(5, 20), (50, 100), (100, 200)]


def test_on_a_shared_card_a_failing_blue_makes_shares_that_only_divide_it_short() -> None:
    card = PreflightResult(strategy="surge", shares_card=True)
    approved = plan_for(PLAN, card, 1, 5.0)

    slow, busy = (follow_evidence(approved, PLAN, card, 1, rate, failing=True) for rate in (0.3, 5.0))
    assert [(step.weight, step.requests, step.at_least_s) for step in slow.steps[:-1]] == [(50, 10, 15.0)]
    assert [(step.weight, step.requests) for step in busy.steps] == [(5, 10), (50, 10), (100, 200)]
    own = replace(PLAN, own_shares=True)
    kept = follow_evidence(approved, own, card, 1, 0.3, failing=True)
    assert [step.weight for step in kept.steps] == [5, 50, 100]
    assert follow_evidence(approved, PLAN, card, 1, 5.0, failing=False).steps == approved.steps


def test_at_parity_all_servers_carry_the_same_share() -> None:
    for strategy, servers, parity in (("surge", 3, 25), ("replace", 4, 25), ("replace", 2, 50)):
        plan = plan_for(PLAN, PreflightResult(strategy=strategy), servers)  # type: ignore[arg-type]
        assert [step.weight for step in plan.steps] == [5, parity, 100 - parity]
        assert [step.parity for step in plan.steps] == [parity, parity, 100 - parity]


@pytest.mark.parametrize("margin", [0.001, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("bad", [0, 1, 50, 89, 90, 99, 100])
@pytest.mark.parametrize("how", ["slow", "errors"])
def test_the_forecast_has_a_time_at_any_share_of_bad_requests(how: str, bad: int, margin: float) -> None:
    """On an overloaded server all first tokens are late; a change is most needed then."""
    recent = served(100, slow=bad) if how == "slow" else served(100, errors=bad)

    forecast = AnytimeJudge().forecast(
        replace(PLAN, margin=margin),
        slo=SLO,
        recent=recent,
        rate_rps=1.0,
        calibration=dict.fromkeys(CALM, INDEPENDENT),
    )

    assert forecast is not None
    assert forecast.usual_s > 0


def forecast_for(gain_needed: GainNeeded, late: float, rate_rps: float = 2.0) -> Forecast:
    total = round(60 * rate_rps)
    forecast = AnytimeJudge().forecast(
        PLAN,
        slo=SLO,
        recent=served(total, slow=round(late * total)),
        rate_rps=rate_rps,
        calibration=dict.fromkeys(CALM, INDEPENDENT),
        gain_needed=gain_needed,
    )
    assert forecast is not None
    return forecast


def test_beside_a_failing_blue_the_forecast_is_of_minutes_not_hours() -> None:
    forecast = forecast_for("if_missed", 1.0)
    assert forecast.decided_by == "better"
    assert forecast.likely_s < 900
    assert forecast_for("if_missed", 1.0, rate_rps=0.5).likely_s > forecast.likely_s


def test_beside_a_healthy_blue_a_useless_change_is_given_up_within_a_quarter_of_an_hour() -> None:
    forecast = forecast_for("always", 0.02)
    assert forecast.decided_by == "gain"
    assert 600 <= forecast.usual_s <= 1100
    assert forecast_for("if_missed", 0.02).decided_by == "not_worse"
