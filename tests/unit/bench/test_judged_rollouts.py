"""Full rollouts in virtual time with the real judge: equal greens pass, bad ones fail."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bench.rollouts.__main__ import draw_mitigations, is_wrong
from bench.rollouts.cases import BAD, CALM, CURED, EQUAL, Green, Profile
from bench.rollouts.story import DEFAULT, Case, Outcome, is_over, play, running
from bench.rollouts.world import BLUE
from flettner.agent.domain.model import Step
from flettner.agent.domain.state import Phase, State
from flettner.simulator.faults import Faults
from tests.support.fast_time import in_no_time
from tests.support.sampling import sampled

PLAN = replace(
    DEFAULT,
    steps=(
        Step(weight=5, requests=5, at_least_s=10, at_most_s=300),
        Step(weight=50, requests=50, at_least_s=30, at_most_s=450),
        Step(weight=100, requests=50, at_least_s=60, at_most_s=600),
    ),
    margin=0.02,
)
STALLS = Profile(name="stalls", stalls=True)
DRIFT = Profile(name="drift", drift=0.5)  # of the rate, in an hour
CASE = Case(seed=1, rate=8.0, profile=CALM, green=EQUAL, plan=PLAN, history_s=330, start_s=25.0)
pytestmark = pytest.mark.timeout(300)  # CPU-bound; the machine may be shared


@pytest.mark.parametrize("profile", sampled([CALM, STALLS, DRIFT], 3), ids=lambda profile: profile.name)
def test_an_equal_green_is_never_rolled_back_as_worse(tmp_path: Path, profile: Profile) -> None:
    outcome = play(replace(CASE, profile=profile), tmp_path)
    assert outcome.result in {"promoted", "undecided"}, outcome


@pytest.mark.parametrize("green", sampled(BAD, 3), ids=lambda green: green.name)
def test_a_bad_green_is_rolled_back_without_a_restart_of_blue(tmp_path: Path, green: Green) -> None:
    slow = replace(green, turns_in_hold_s=30.0) if green.turns_in_hold_s is not None else green
    smoke, parity, hold = PLAN.steps
    steps = (smoke, replace(parity, at_most_s=1800), replace(hold, at_least_s=600, at_most_s=1800))
    plan = replace(PLAN, margin=0.01, steps=steps)
    outcome = play(replace(CASE, green=slow, plan=plan), tmp_path)
    assert outcome.result == "rolled_back", outcome
    if green.faults.wrong:
        assert "if green were another blue" in outcome.why
        assert outcome.exposed == 0
        return
    assert "green is worse" in outcome.why
    assert outcome.exposed > outcome.bad_exposed > 0
    assert outcome.back_s is not None
    assert outcome.back_s <= 2.0
    assert outcome.launches == 0


@pytest.mark.parametrize("number", [1, 7], ids=["cured", "useless"])
def test_a_mitigation_is_promoted_only_if_it_cures(tmp_path: Path, number: int) -> None:
    case = list(draw_mitigations(number + 1, hold_s=120.0))[number]
    outcome = play(replace(case, history_s=200), tmp_path)
    assert (outcome.result == "promoted") is (case.green is CURED), outcome
    assert not is_wrong(outcome)


@pytest.mark.slow
def test_a_minute_without_records_holds_the_step_and_keeps_earlier_evidence(tmp_path: Path) -> None:
    async def scenario() -> tuple[State, State, State, Outcome]:
        async with running(CASE, tmp_path) as story:
            await story.begin()
            await story.at_weight(50)
            await asyncio.sleep(40.0)
            before = story.state
            story.world.records = False
            await asyncio.sleep(60.0)
            during = story.state
            story.world.records = True
            await asyncio.sleep(5.0)
            return before, during, story.state, await story.end()

    before, during, after, outcome = in_no_time(scenario())
    assert during.note.startswith("held: requests cannot be counted")
    assert valid_s(before) <= valid_s(during) <= valid_s(before) + 3 < valid_s(after) + 3
    assert green_requests(after) > green_requests(before) > 0
    assert (outcome.result, outcome.parked) == ("promoted", 0)


@pytest.mark.parametrize("weight", sampled([50, 100], 2))
def test_after_two_minutes_without_records_green_loses_traffic_until_they_return(
    tmp_path: Path, weight: int
) -> None:
    async def scenario() -> tuple[State, dict[str, int], Outcome]:
        async with running(CASE, tmp_path) as story:
            await story.begin()
            await story.at_weight(weight)
            await asyncio.sleep(20.0)
            story.world.records = False
            await asyncio.sleep(300.0)
            parked, weights = story.state, story.world.traffic.weights_in_force
            story.world.records = True
            return parked, weights, await story.end()

    parked, weights, outcome = in_no_time(scenario())
    assert parked.phase is Phase.CANARY
    assert weights == {BLUE: 100}
    assert outcome.result in {"promoted", "undecided"}, outcome
    assert outcome.parked == 1


@pytest.mark.slow
def test_a_lasting_loss_of_records_neither_promotes_nor_blames(tmp_path: Path) -> None:
    async def scenario() -> Outcome:
        async with running(CASE, tmp_path) as story:
            await story.begin()
            await story.at_weight(50)
            story.world.records = False
            return await story.end()

    outcome = in_no_time(scenario())
    assert outcome.result == "undecided", outcome
    assert "no verdict at 50 % within" in outcome.why


@pytest.mark.slow
def test_request_records_suffice_without_scrapes(tmp_path: Path) -> None:
    async def scenario() -> Outcome:
        async with running(CASE, tmp_path) as story:
            await story.begin()
            story.world.scrapes = False
            return await story.end()

    assert in_no_time(scenario()).result == "promoted"


@pytest.mark.parametrize("weight", sampled([50, 100], 2))
def test_a_restart_loses_at_most_ten_seconds_of_evidence(tmp_path: Path, weight: int) -> None:
    async def scenario() -> tuple[State, State]:
        async with running(CASE, tmp_path) as story:
            await story.begin()
            await story.at_weight(weight)
            await asyncio.sleep(33.0)
            before = story.state
            await story.stop()
            await asyncio.sleep(4.0)
            story.start()
            await asyncio.sleep(0.2)
            return before, story.state

    before, after = in_no_time(scenario())
    assert before.rollout is not None
    assert after.rollout is not None
    assert after.canary.step == before.canary.step
    assert valid_s(before) - 10.0 <= valid_s(after) <= valid_s(before)
    assert 0 < green_requests(after) <= green_requests(before)


@pytest.mark.slow
def test_an_incident_on_both_sides_holds_the_step(tmp_path: Path) -> None:
    both = Profile(name="incident", incident_s=(60.0, 240.0), incident_errors=0.5)

    async def scenario() -> tuple[State, Outcome]:
        async with running(replace(CASE, profile=both), tmp_path) as story:
            await story.begin()
            await story.at_weight(50)
            await story.until(
                lambda state: is_over(state) or story.world.at_s > story.world.incident_s[0] + 60
            )
            return story.state, await story.end()

    during, outcome = in_no_time(scenario())
    assert "blue has an incident" in during.note
    assert outcome.result in {"promoted", "undecided"}, outcome
    assert outcome.held_s >= 60


@pytest.mark.slow
def test_an_incident_that_began_with_blue_present_is_not_evidence_against_green_alone(tmp_path: Path) -> None:
    both = Profile(name="incident", incident_s=(60.0, 360.0), incident_errors=0.06)
    outcome = play(replace(CASE, profile=both), tmp_path)
    assert outcome.result in {"promoted", "undecided"}, outcome
    assert outcome.steps_s.get(100, 360.0) >= 360.0


def test_a_failure_in_the_hold_step_rolls_back_to_blue_within_seconds(
    tmp_path: Path,
) -> None:
    late = Green(name="late", faults=Faults(), turns_in_hold_s=600.0)
    plan = replace(PLAN, steps=(*PLAN.steps[:2], replace(PLAN.steps[2], at_least_s=1800, at_most_s=7200)))
    outcome = play(replace(CASE, green=late, plan=plan), tmp_path)
    assert (outcome.result, outcome.weight, outcome.launches) == ("rolled_back", 100, 0), outcome
    assert outcome.onset_s is not None
    assert outcome.onset_s - outcome.steps_s[100] >= 599
    assert outcome.after_onset_s is not None
    assert outcome.after_onset_s <= 60
    assert outcome.back_s is not None
    assert outcome.back_s <= 2.0


def valid_s(state: State) -> float:
    assert state.rollout is not None
    return state.canary.evidence.valid_s


def green_requests(state: State) -> int:
    assert state.rollout is not None
    return state.canary.green_counts.total
