"""Reactions to verdicts: hold, suspend, resume, and roll back without a gain."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flettner.agent.audit.history import History
from flettner.agent.domain import events as e
from flettner.agent.domain.canary_evidence import GREEN, CanaryEvidence, UnknownModel
from flettner.agent.domain.model import Adapter, Outcome, OutcomeResult, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.request_counts import ClientBucket, RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.machine import canary_decision
from flettner.agent.machine.earlier_outcomes import why_not_again
from flettner.agent.machine.launching import extends_baseline
from flettner.agent.machine.step import Machine, state_without_counts
from tests.support.machine_stories import NOON, PLAN, CountingJudge, RaiseSeqs, World, rules

BLIND = "Envoy has closed its connection"
SLOW = replace(
    PLAN, steps=tuple(replace(step, requests=30, at_least_s=40, at_most_s=300) for step in PLAN.steps)
)


def in_canary() -> World:
    world = World().start().until("proposed").approve().until("canary")
    while world.state.rollout is None or world.state.canary.step_since is None:
        world.tick()
    return world


def blind(world: World, seconds: int) -> World:
    """Tick `seconds` without records of the proxy."""
    world.silent = True
    world.blind = BLIND
    world.tick(seconds)
    world.silent = False
    world.blind = ""
    return world


def test_a_short_outage_of_the_records_holds_the_canary_which_then_continues() -> None:
    world = blind(in_canary(), 30)
    assert world.state.phase is Phase.CANARY
    assert world.state.note == f"held: {BLIND}"
    assert world.until("observing").state.rollout.outcome == "promoted"  # type: ignore[union-attr]


def test_the_judge_hears_which_requests_a_client_pinned_to_which_side() -> None:
    world = in_canary()
    blue, green = world.state.fleet.running[0].name, world.state.canary.green.name
    mine, others = RequestCounts(total=2, errors=2), RequestCounts(total=5)
    pinned, by_chance = ClientBucket(3, pinned=True), ClientBucket(4, pinned=False)
    clients = {blue: {pinned: mine}, green: {pinned: others, by_chance: others}, "gone": {pinned: mine}}
    event = e.Observed(at=world.at, arms={blue: mine, green: others}, clients=clients)

    second = canary_decision.observation_of(world.state, event, others)

    assert list(second.clients.values()) == [{blue: mine, GREEN: others}]


LEGAL = Adapter(name="legal", path="/a")


def refuse_model(world: World, name: str, *, blue: int = 0, seconds: int = 5, greens: bool = True) -> World:
    """One request a second for the model is refused by green, and `blue` by blue."""
    for _ in range(seconds):
        running, canary = world.state.fleet.running[0].name, world.state.rollout
        if not isinstance(canary, Canary) or world.state.phase is not Phase.CANARY:
            break
        refused = {running: {name: blue}} | ({canary.green.name: {name: 1}} if greens else {})
        world.at += timedelta(seconds=1)
        world.feed(e.Observed(at=world.at, unknown_models=refused))
    return world


def serving(*, green: tuple[Adapter, ...] = (LEGAL,)) -> World:
    """Blue serves an adapter, and green too as far as its list says."""
    world = in_canary()
    world.machine = Machine(rules(judge=AnytimeJudge()))
    world.state = replace(world.state, rollout=_patient(world))
    blue = world.state.fleet.running[0].name
    world.feed(e.AdaptersRead(at=world.at, server=blue, adapters=(LEGAL,)))
    return world.feed(e.AdaptersRead(at=world.at, server=world.state.canary.green.name, adapters=green))


@pytest.mark.parametrize("name", ["legal", "m"], ids=["an adapter", "the model"])
def test_a_name_that_blue_serves_and_green_refuses_is_harm_after_three_requests(name: str) -> None:
    world = serving()
    world.at += timedelta(seconds=16)

    before = refuse_model(world, name, seconds=2).state.phase
    refuse_model(world, name, seconds=1)

    assert before is Phase.CANARY
    assert world.state.phase is Phase.ROLLING_BACK
    assert f"it answered 404 to 3 of the requests for {name}, which blue serves" in world.state.canary.why


@pytest.mark.parametrize("case", ["blue refuses it, too", "nobody serves it", "only blue refuses it"])
def test_a_name_that_green_alone_does_not_refuse_is_no_harm(case: str) -> None:
    world = serving()
    world.at += timedelta(seconds=16)

    refuse_model(
        world,
        "other" if case == "nobody serves it" else "legal",
        blue=int(case != "nobody serves it"),
        greens=case != "only blue refuses it",
        seconds=20,
    )

    assert world.state.phase is Phase.CANARY


def test_an_adapter_that_is_new_at_blue_has_time_to_be_loaded_at_green() -> None:
    world = serving(green=())

    early = refuse_model(world, "legal", seconds=10).state.phase
    refuse_model(world, "legal", seconds=10)

    assert early is Phase.CANARY
    assert world.state.phase is Phase.ROLLING_BACK


def test_green_does_not_pass_while_it_has_refused_one_request_for_a_name() -> None:
    world = in_canary()
    evidence = replace(world.state.canary.evidence, unknown_models={"m": UnknownModel(green=1)})
    world.state = replace(world.state, rollout=replace(_patient(world), evidence=evidence))

    world.tick(60)

    assert world.state.canary.step == 0
    assert "it answered 404 to 1 of the requests for m" in world.state.canary.waits


def test_refusals_of_a_name_count_over_a_restart() -> None:
    world = serving()
    world.at += timedelta(seconds=16)
    refuse_model(world, "m", seconds=2)

    world.start().tick()
    refuse_model(world, "m", seconds=1)

    assert world.state.phase is Phase.ROLLING_BACK


def test_a_long_outage_suspends_green_without_traffic_until_it_ends() -> None:
    world = in_canary()
    world.state = replace(world.state, rollout=_patient(world))
    blind(world, 150)
    assert world.state.rollout is not None
    assert world.state.canary.parked == BLIND
    assert world.weights == {"chat-r0": 100, "chat-r1": 0}
    assert world.until("observing").state.rollout.outcome == "promoted"  # type: ignore[union-attr]


def test_an_endless_outage_is_undecided_and_rolls_back() -> None:
    world = in_canary()
    world.silent, world.blind = True, BLIND
    world.until("cooldown", limit_s=400)
    assert world.state.outcomes[-1].result == "undecided"


def test_a_suspended_canary_stays_suspended_after_a_restart() -> None:
    world = in_canary()
    world.state = replace(world.state, rollout=_patient(world))
    blind(world, 150)
    world.silent, world.blind = True, BLIND
    world.start().tick(3)
    assert world.weights == {"chat-r0": 100, "chat-r1": 0}


def test_a_restart_continues_with_earlier_evidence() -> None:
    world = in_canary()
    world.tick(1)
    before = world.state.canary
    world.start()
    after = world.state.canary
    assert (after.step, after.evidence.valid_s) == (before.step, before.evidence.valid_s)
    assert after.green_counts == before.green_counts
    assert after.step_since == before.step_since


def test_a_change_without_gain_is_rolled_back_and_not_tried_again() -> None:
    world = World(machine=Machine(rules(judge=CountingJudge(better=""))))
    world.start().until("proposed").approve().until("cooldown")
    assert world.state.outcomes[-1].result == "no_gain"
    assert world.state.note.startswith("rolled back: no measurable gain")
    world.tick(120)
    assert world.state.phase is Phase.OBSERVING
    assert "no gain" in world.state.note


def test_a_mitigation_only_needs_to_be_not_worse() -> None:
    class Mitigates(RaiseSeqs):
        def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
            proposals = super().propose(reading, context)
            return tuple(replace(proposal, mitigation=True) for proposal in proposals)

    chosen = rules(judge=CountingJudge(better=""), policies=(("admission", Mitigates()),))
    world = World(machine=Machine(chosen)).start().until("proposed").approve().until("promoting")
    assert "no measurable gain, and none is required" in world.state.note


@pytest.mark.parametrize("better", ["better: none failed", "better: quicker"])
def test_a_promotion_tells_its_gain_once(better: str) -> None:
    world = (
        World(machine=Machine(rules(judge=CountingJudge(better=better)))).start().until("proposed").approve()
    )

    why = world.until("promoting").state.note

    assert why.count(better.removeprefix("better: ")) == 1


def test_a_change_requested_by_an_operator_needs_no_gain() -> None:
    world = World(machine=Machine(rules(judge=CountingJudge(better=""), policies=()))).start().tick()
    world.feed(e.ChangeAsked(at=world.at, actor="alice", to={"max_num_seqs": 8}, reason="try it"))
    world.until("proposed").approve().until("observing")
    assert world.state.outcomes[-1].result == "promoted"


def test_the_history_records_how_the_evidence_grew() -> None:
    world, history = in_canary(), History()
    for second in range(3):
        rollout = world.state.canary
        evidence = replace(rollout.evidence, at=world.at, valid_s=float(second))
        history.add_state(replace(world.state, rollout=replace(rollout, evidence=evidence)))
        history.add_state(replace(world.state, rollout=replace(rollout, evidence=evidence)))
        world.tick()
    points = history.points("chat-1")
    assert len(points) == 3
    assert [point.at for point in points] == sorted(point.at for point in points)
    assert history.points("chat-9") == ()


def _patient(world: World) -> Canary:
    rollout = world.state.canary
    steps = tuple(replace(step, at_most_s=600) for step in rollout.plan.steps)
    return replace(rollout, plan=replace(rollout.plan, steps=steps))


def test_a_rollout_that_cannot_show_its_gain_ends_early() -> None:
    class SeesNoGain(CountingJudge):
        def update(self, evidence: CanaryEvidence, **counts: Any) -> tuple[CanaryEvidence, Verdict]:  # noqa: ANN401
            evidence, _ = super().update(evidence, **counts)
            return evidence, Verdict(kind="futile", why="a gain of 10 points is ruled out")

    world = World(machine=Machine(rules(judge=SeesNoGain())))
    world.start().until("proposed").approve().until("cooldown")

    assert world.state.outcomes[-1].result == "no_gain"
    assert "a gain of 10 points is ruled out" in world.state.note


def test_what_a_step_waits_for_is_shown_but_not_journalled() -> None:
    world = in_canary()
    while (rollout := world.state.rollout) is not None and not rollout.waits:
        world.tick()
    assert rollout is not None
    assert "requests" in rollout.waits
    other = replace(world.state, rollout=replace(rollout, waits="something else"))
    assert state_without_counts(other) == state_without_counts(world.state)


def test_an_undecided_change_waits_longer_each_time() -> None:
    def refused(minutes: float, *results: OutcomeResult) -> bool:
        outcomes = tuple(
            Outcome(at=NOON + timedelta(hours=n), result=result, to={"max_num_seqs": 16}, why="no verdict")
            for n, result in enumerate(results)
        )
        at = outcomes[-1].at + timedelta(minutes=minutes)
        return bool(why_not_again(outcomes, {"max_num_seqs": 16}, at))

    assert refused(29, "undecided")
    assert not refused(31, "undecided")
    assert refused(59, "undecided", "undecided")
    assert not refused(61, "undecided", "undecided")
    assert not refused(31, "undecided", "promoted", "undecided")
    assert refused(60 * 24, "no_gain", "undecided")


def test_the_judge_knows_the_hold_step() -> None:
    world = in_canary()
    held = dict[int, bool]()
    while (rollout := world.state.canary).outcome == "running":
        held[rollout.step] = rollout.evidence.holding
        world.tick()
    assert held == {0: False, 1: False, 2: True}


def test_a_blue_that_fails_only_while_green_starts_gets_shorter_shares() -> None:
    """When the suggestion was made its record had too few requests."""
    world = World(machine=Machine(rules(plan=SLOW))).start().until("proposed")
    (shown,) = world.state.suggestions.open
    assert shown.plan is not None
    assert shown.plan.steps[1].requests == SLOW.steps[1].requests
    world.approve().until("launching")
    failing = RequestCounts(total=40, late=40)
    world.state = replace(world.state, rollout=replace(world.state.canary, baseline=failing))
    world.until("canary")
    first, parity, _ = world.state.canary.plan.steps
    assert (first.weight, first.requests, first.at_least_s) == (5, 10, 15.0)
    assert (parity.requests, parity.at_least_s) == (20, 20.0)


def test_the_start_beside_blue_on_its_card_adds_nothing_to_a_baseline_that_is_sufficient() -> None:
    canary = in_canary().state.canary
    shared = replace(canary, plan=replace(canary.plan, shares_card=True))
    assert extends_baseline(replace(canary, baseline=RequestCounts(total=200)))
    assert not extends_baseline(replace(shared, baseline=RequestCounts(total=200)))
    assert extends_baseline(replace(shared, baseline=RequestCounts(total=20)))
    assert extends_baseline(replace(shared, baseline=RequestCounts(total=200, late=150)))
