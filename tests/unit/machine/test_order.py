"""One target after the other: the first is the canary of the rest, and its rollback stops them."""

from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from flettner.agent.config.windows import parse_period
from flettner.agent.domain import events as e
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.windows import Schedule, Windows
from flettner.agent.machine.order import find_end, list_waiting, target_of_suggestion
from flettner.agent.machine.step import Machine
from tests.support.machine_stories import World, rules

AHEAD = "first-s4"


def story(target: str = "chat") -> World:
    machine = Machine(rules(policies=()))
    return World(machine=machine, state=State(target=target, mode="approve")).start().tick()


def ask(world: World, after: str) -> World:
    asked = e.ChangeAsked(at=world.at, actor="root", to={"max_num_seqs": 8}, reason="newer", after=after)
    return world.feed(asked).tick(2)


def waiting() -> World:
    """An approved suggestion that waits for its turn."""
    return ask(story(), AHEAD).approve().tick(60)


def test_an_approved_suggestion_starts_in_its_turn_as_it_was_approved() -> None:
    world = ask(story(), AHEAD)
    (shown,) = world.state.suggestions.open
    world.approve()
    world.at += timedelta(hours=3)  # longer than an open suggestion lasts
    world.tick(2)

    (approved,) = world.state.suggestions.open
    world.ahead = {AHEAD: ""}
    world.tick(2)

    assert "it starts after first-s4 of first is promoted, or ends with it" in shown.notes[-1]
    assert (approved.approved_by, approved.digest) == ("alice", shown.digest)
    assert world.state.rollout is not None
    assert world.state.rollout.suggestion.digest == shown.digest


def test_a_suggestion_that_has_its_turn_before_the_approval_starts_with_it() -> None:
    world = ask(story(), AHEAD)
    world.ahead = {AHEAD: ""}
    world.tick(5)
    before = world.state.phase

    world.approve().tick()

    assert before is Phase.PROPOSED
    assert world.state.rollout is not None


@pytest.mark.parametrize("approved", [False, True])
def test_a_suggestion_ends_with_what_it_comes_after(*, approved: bool) -> None:
    world = waiting() if approved else ask(story(), AHEAD)
    world.ahead = {AHEAD: "first-s4 was rolled back: green is worse"}

    world.tick()

    assert (world.state.phase, world.state.rollout) == (Phase.OBSERVING, None)
    (ended,) = world.state.suggestions.ended
    assert (ended.status, ended.id) == ("refused", "chat-s1")
    assert "was not promoted: first-s4 was rolled back: green is worse" in ended.notes[-1]


def test_a_check_ends_with_what_it_comes_after() -> None:
    world = story()
    asked = e.ChangeAsked(at=world.at, actor="root", to={"max_num_seqs": 8}, reason="newer", after=AHEAD)
    world.feed(asked)

    world.feed(e.Observed(at=world.at, ahead={AHEAD: "first-s4 ended without a promotion"}))

    assert world.state.suggestions.checking is None
    assert world.state.phase is Phase.OBSERVING


def test_a_suggestion_waits_for_the_windows_too() -> None:
    world = waiting()
    closed = Schedule(zone=ZoneInfo("UTC"), frozen=(parse_period("Tue 12:00-12:10"),))
    world.machine = Machine(replace(world.machine.rules, windows=Windows((closed,))))
    world.ahead = {AHEAD: ""}

    world.tick(60)
    early = world.state.rollout
    world.at += timedelta(minutes=9)
    world.tick(2)

    assert early is None
    assert world.state.rollout is not None


def test_a_turn_is_kept_over_a_restart() -> None:
    world = ask(story(), AHEAD)
    world.ahead = {AHEAD: ""}
    world.tick().start()
    world.ahead = {}

    world.approve().tick()

    assert world.state.rollout is not None


def tick_all(worlds: dict[str, World], seconds: int) -> None:
    """Each second, every target gets the ends of the suggestions it waits for, as a daemon gives them."""
    for _ in range(seconds):
        for world in worlds.values():
            ids = list_waiting(world.state)
            ends = {id_: find_end(worlds[target_of_suggestion(id_)].state, id_) for id_ in ids}
            world.ahead = {id_: why for id_, why in ends.items() if why is not None}
            world.tick()


@pytest.mark.parametrize("bad", ["", "a", "b"])
def test_three_targets_one_after_the_other(bad: str) -> None:
    worlds = {name: story(name) for name in ("a-1", "b", "c")}
    after = ""
    for name, world in worlds.items():
        ask(world, after)
        after = world.state.suggestions.open[0].id
        world.green_fails = 5 if name[0] == bad else 0
    for name in ("c", "b", "a-1"):
        worlds[name].approve()

    order: list[str] = []
    for _ in range(200):
        tick_all(worlds, 1)
        running = [name for name, world in worlds.items() if world.state.phase is Phase.CANARY]
        assert len(running) <= 1
        new = [name for name in running if name not in order]
        order += new
        if "b" in new:  # a restart of the daemon in the middle of the order
            for world in worlds.values():
                world.start()

    results = [world.state.outcomes[-1].result if world.state.outcomes else "" for world in worlds.values()]
    if not bad:
        assert (order, results) == (["a-1", "b", "c"], ["promoted"] * 3)
    if bad == "a":
        assert (order, results[1:]) == (["a-1"], ["", ""])
    if bad == "b":
        assert (order, results[0], results[2]) == (["a-1", "b"], "promoted", "")
    assert not any(world.state.suggestions.pending for world in worlds.values())


def test_the_end_of_a_suggestion() -> None:
    world = ask(story(), "")
    (made,) = world.state.suggestions.open

    assert find_end(world.state, made.id) is None
    assert find_end(None, made.id) == "the target of chat-s1 is not in the config"
    assert find_end(world.state, "chat-s9") == "chat-s9 ended without a promotion"
    world.approve().until("canary")
    assert find_end(world.state, made.id) is None
    world.until("observing")
    assert find_end(world.state, made.id) == ""
