"""What green costs blue on their card: measured, and shown before the next approval."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Forecast, PreflightResult, StartForecast
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.start_cost import BESIDE, STARTING, Speed, StartCost, expected_cost
from flettner.agent.domain.state import State
from flettner.agent.machine.default_plan import plan_for
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.start_costs import foresee_start
from flettner.agent.machine.step import Machine, state_without_counts
from tests.support.machine_stories import BLUE, NOON, PLAN, World, rules

SHARED = PreflightResult(start_s=80.0, shares_card=True)
FORECAST = Forecast(rate_rps=10.0, usual_s=40.0, likely_s=100.0, hold_s=60.0)


def foresee(preflight: PreflightResult = SHARED, **traffic: object) -> Forecast:
    state = State(target="chat", fleet=Fleet(servers=(BLUE,)))
    state = replace(state, traffic=replace(state.traffic, **traffic))  # type: ignore[arg-type]
    return foresee_start(state, plan_for(PLAN, preflight, 1), preflight, FORECAST, 6.0)


def start_of(forecast: Forecast) -> StartForecast:
    assert forecast.start is not None
    return forecast.start


def test_start_canary_and_hold_step_are_one_time() -> None:
    forecast = foresee()

    assert start_of(forecast).usual_s == 85.0
    assert forecast.whole_s == (185.0, 275.0)


def test_the_suggestion_says_what_green_costs_and_how_many_will_wait() -> None:
    world = World(machine=Machine(rules())).start().until("proposed")
    (shown,) = world.state.suggestions.open

    def notes(forecast: Forecast) -> str:
        plan = plan_for(PLAN, SHARED, 1)
        return " ".join(Guard().seal(shown, SHARED, expires_at=NOON, plan=plan, forecast=forecast).notes)

    text = notes(foresee(waiting=100.0))
    assert "start, canary and hold step take about 3.1 min (nine of ten less than 4.6 min)" in text
    assert (
        "1.04 times as long while green starts, and 2.10 times while both serve (as recorded on an H100)"
        in text
    )
    assert "requests will wait when the hold step begins" in text
    assert "requests will wait" not in notes(foresee())


def test_without_a_known_start_the_forecast_has_none() -> None:
    assert foresee(replace(SHARED, start_s=None)) == FORECAST


def test_the_queue_grows_while_green_starts_and_while_both_serve() -> None:
    assert start_of(foresee(waiting=0.0)).queue == 0
    alone = start_of(foresee(replace(SHARED, shares_card=False), waiting=100.0)).queue
    assert alone == pytest.approx(100 + 85 * (10 - 6) + 20 * (9.5 - 6) + 20 * (5 - 6))
    assert start_of(foresee(waiting=100.0)).queue > alone


def test_measured_costs_outweigh_the_recorded_ones() -> None:
    assert expected_cost(()) == StartCost(STARTING, BESIDE)
    cost = expected_cost([StartCost(1.5, 1.2)] * 4 + [StartCost(None)])
    assert cost.starting == pytest.approx((STARTING + 4 * 1.5) / 5)
    assert cost.beside == pytest.approx((BESIDE + 4 * 1.2) / 5)


def test_a_token_takes_as_long_as_the_tokens_of_a_running_sequence_are_few() -> None:
    assert Speed(800.0, 8.0).slowdown_to(Speed(400.0, 8.0)) == 2.0
    assert Speed(800.0, 8.0).slowdown_to(Speed(0.0, 0.0)) is None


class SlowBeside(World):
    """Blue computes 40 tokens a second alone, 32 while green starts, and 20 while green has a share."""

    def liveness(self, name: str) -> EngineLiveness:
        engine = super().liveness(name)
        shared = any(weight for server, weight in self.weights.items() if server != BLUE.name)
        starts = self.state.phase.value in {"launching", "warming"}
        return replace(engine, tokens=20.0 if shared else 32.0 if starts else 40.0)


def test_each_rollout_measures_what_green_costs() -> None:
    world = SlowBeside(machine=Machine(rules()), preflight=PreflightResult(start_s=3.0, shares_card=True))
    world.start().tick(60).until("proposed")
    world.approve().until("launching")
    for second in range(20):
        seen = e.Observed(
            at=world.at + timedelta(seconds=second / 100), engines={BLUE.name: world.liveness("")}
        )
        world.state, _ = world.machine.step(world.state, seen)
    world.until("observing")

    (cost,) = world.state.start_costs
    assert cost.starting == pytest.approx(1.25, abs=0.01)
    assert cost.beside == pytest.approx(2.0, abs=0.01)


def test_the_speed_of_each_second_is_not_journalled() -> None:
    world = World().start().until("proposed").approve().until("canary")
    canary = world.state.canary
    later = replace(world.state, rollout=replace(canary, starting=Speed(1.0, 1.0), beside=Speed(2.0, 1.0)))
    assert state_without_counts(later) == state_without_counts(world.state)
