"""A daemon may die at any instant: the next one ends with blue or with green, never with both or none."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import events as e
from agent.machine import numbered
from agent.state import Phase
from tests.stories import BLUE, World

STORIES = {
    "promoted": World(),
    "rolled back": World(green_fails=1),
    "fails to start": World(refuses={"launch"}),
}
SETTLED = {Phase.OBSERVING, Phase.PROPOSED, Phase.COOLDOWN}


def told(story: str, seconds: int) -> World:
    """The story up to the second at which the daemon dies; effects asked for but not performed are lost."""
    world = copy.deepcopy(STORIES[story]).start().until("proposed").approve()
    return world.tick(seconds) if seconds else world


def settle(world: World) -> World:
    for _ in range(300):
        if (
            world.state.phase in SETTLED
            and world.state.awaiting is None
            and not numbered(tuple(world.pending))
        ):
            return world.tick(2)  # a split that was lost with its daemon is carried out by the next KeepAlive
        world.tick()
    raise AssertionError(f"still {world.state.phase} after 300 s: {world.state.note}")


def assert_whole(world: World) -> None:
    """Design invariants 1, 3: one server, with all the traffic, and it is the one the state calls blue."""
    assert world.state.blue is not None
    assert list(world.running) == [world.state.blue.name]
    assert world.weights == {world.state.blue.name: 100}
    assert world.state.green is None


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seconds", range(24))
@pytest.mark.parametrize("performed", [False, True], ids=["effects lost", "effects done, reply lost"])
def test_a_restart_at_any_second_ends_whole(story: str, seconds: int, performed: bool) -> None:
    world = told(story, seconds)
    if performed:
        for effect in world.pending:
            world.perform(effect)

    settle(world.start())

    assert_whole(world)


@pytest.mark.parametrize("seconds", range(0, 24, 3))
@pytest.mark.parametrize("again", range(4))
def test_a_second_crash_during_recovery_ends_whole(seconds: int, again: int) -> None:
    world = told("promoted", seconds).start().tick(again).start()

    settle(world)

    assert_whole(world)


@pytest.mark.parametrize("seconds", range(20))
def test_a_green_that_died_with_the_daemon_is_not_waited_for(seconds: int) -> None:
    world = told("promoted", seconds)
    if world.state.green is None:
        return
    world.running.pop(world.state.green.name, None)
    world.pending = []

    settle(world.start())

    assert_whole(world)


@pytest.mark.parametrize("seconds", range(20))
def test_a_blue_that_died_with_the_daemon_is_replaced(seconds: int) -> None:
    world = (
        World(running={BLUE.name: replace(BLUE, ours=True)}).start().until("proposed").approve().tick(seconds)
    )
    assert world.state.blue is not None
    world.running.pop(world.state.blue.name, None)

    settle(world.start())

    assert_whole(world)


def test_a_daemon_that_keeps_dying_takes_its_canary_back() -> None:
    world = World().start().until("proposed").approve().until("canary").tick()

    for _ in range(3):
        world.start().tick()
    settle(world)

    assert world.state.rollout is not None
    assert world.state.rollout.why == "the daemon was restarted 3 times in this rollout"


@pytest.mark.parametrize("seconds", range(0, 24, 2))
def test_advise_mode_in_the_middle_of_a_rollout_touches_nothing_and_approve_mode_ends_it(
    seconds: int,
) -> None:
    world = told("promoted", seconds)
    world.mode = "advise"
    performed = len(world.performed)

    world.start().tick(30)
    assert len(world.performed) == performed
    world.mode = "approve"
    settle(world.start())

    assert_whole(world)
    assert world.state.rollout is not None
    assert world.state.rollout.ended_at is not None


def test_other_flags_than_trimtab_gave_are_adopted_and_said() -> None:
    world = World().start().until("proposed")
    world.running[BLUE.name] = replace(BLUE, setting={"model": "m", "max_num_seqs": 32})

    world.start()

    assert world.state.blue is not None
    assert world.state.blue.setting["max_num_seqs"] == 32
    assert world.state.suggestion is not None
    assert world.state.suggestion.status == "superseded"


MISHAPS = st.sampled_from(
    [
        "tick",
        "crash",
        "approve",
        "deny",
        "abort",
        "ask",
        "pause",
        "resume",
        "green dies",
        "route refused",
        "mend",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MISHAPS, max_size=40))
def test_no_order_of_mishaps_leaves_two_servers_or_none(mishaps: list[str]) -> None:
    world = World(running={BLUE.name: replace(BLUE, ours=True)}).start()
    for mishap in mishaps:
        befall(world, mishap)
        routed = [w for w in world.weights.values() if w]
        assert not world.weights or sum(routed) == 100
        assert len(world.running) <= 3
    world.refuses, world.state = set(), replace(world.state, paused=True)

    settle(world.tick())

    assert_whole(world)


def befall(world: World, mishap: str) -> None:  # noqa: C901 - a table of mishaps
    suggestion, at = world.state.suggestion, world.at
    match mishap:
        case "crash":
            world.start()
        case "approve" if suggestion:
            world.approve()
        case "deny" if suggestion:
            world.feed(e.Denied(at=at, actor="bob", suggestion=suggestion.id, reason="no"))
        case "abort":
            world.feed(e.Aborted(at=at, actor="bob", reason="stop"))
        case "ask":
            world.feed(e.ChangeAsked(at=at, actor="bob", to={"max_num_seqs": 8}, reason="8"))
        case "pause":
            world.feed(e.Paused(at=at, actor="bob"))
        case "resume":
            world.feed(e.Resumed(at=at, actor="bob"))
        case "green dies" if world.state.green:
            world.running.pop(world.state.green.name, None)
            world.feed(e.ServerLost(at=at, server=world.state.green.name, why="exited with 1"))
        case "blue dies" if world.state.blue and world.state.blue.name in world.running:
            world.running.pop(world.state.blue.name)
            world.feed(e.ServerLost(at=at, server=world.state.blue.name, why="exited with 137"))
        case "route refused":
            world.refuses = {"route"}
        case "mend":
            world.refuses = set()
        case _:
            world.tick()
