"""A green that ended for a reason outside its setting: its values wait and are tried again."""

from datetime import timedelta

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.state import Phase
from flettner.agent.machine.earlier_outcomes import UNDECIDED_FOR
from tests.support.machine_stories import World

PHASES = ["launching", "warming", "canary", "promoting"]
SECOND = timedelta(seconds=1)


def rolling(phase: str) -> World:
    return World().start().until("proposed").approve().until(phase)


def result(world: World) -> str:
    return world.state.outcomes[-1].result


def lost(world: World, *, external: bool) -> e.ServerLost:
    why = "chat-r1 was killed by a third party (docker kill, SIGKILL)"
    return e.ServerLost(at=world.at, server="chat-r1", why=why, external=external)


def suggested_again(world: World) -> bool:
    """Whether the same value is suggested half an hour after the rollout."""
    world.until("observing", 400).tick(60)
    assert world.state.phase is Phase.OBSERVING, "suggested again at once"
    world.at += UNDECIDED_FOR
    world.tick(5)
    return bool(world.state.suggestions.open)


@pytest.mark.parametrize("phase", PHASES)
def test_a_green_that_a_third_party_killed_is_tried_again(phase: str) -> None:
    world = rolling(phase)
    world.feed(lost(world, external=True)).until("cooldown")

    assert result(world) == "undecided"
    assert suggested_again(world)


@pytest.mark.parametrize("phase", PHASES)
def test_a_green_that_exits_by_itself_is_not_tried_again(phase: str) -> None:
    world = rolling(phase)
    world.feed(lost(world, external=False)).until("cooldown")

    assert result(world) in {"failed", "rolled_back"}
    assert not suggested_again(world)


def test_a_green_whose_start_a_third_party_ended_is_tried_again() -> None:
    world = rolling("launching")
    number = world.state.effects.last_number
    world.feed(e.EffectFailed(at=world.at, number=number, why="docker rm", external=True)).until("cooldown")

    assert result(world) == "undecided"


@pytest.mark.parametrize("phase", ["warming", "canary", "promoting"])
def test_a_green_that_did_not_survive_a_crash_of_the_host_is_tried_again(phase: str) -> None:
    world = rolling(phase)
    del world.running["chat-r1"]
    world.start().until("cooldown")

    assert result(world) == "undecided"
    assert suggested_again(world)


def test_the_requests_that_a_killed_green_failed_do_not_condemn_it() -> None:
    world = rolling("canary").tick(2)
    world.green_fails = 5
    world.tick()
    assert world.state.phase is Phase.ROLLING_BACK
    assert result(world) == "rolled_back"

    world.feed(lost(world, external=True)).until("cooldown")

    assert result(world) == "undecided"


@pytest.mark.parametrize(
    ("ticks", "external"),
    [
        pytest.param(0, False, id="it exited by itself"),
        pytest.param(3, True, id="flettner retires it"),
    ],
)
def test_a_green_that_was_judged_bad_stays_so(ticks: int, external: bool) -> None:
    world = rolling("canary").tick(2)
    world.green_fails = 5
    world.tick().tick(ticks)

    world.feed(lost(world, external=external)).until("cooldown")

    assert result(world) == "rolled_back"
    assert not suggested_again(world)


def test_an_aborted_change_is_suggested_again_but_does_not_start_by_itself() -> None:
    world = World(mode="auto").start().until("canary")
    world.feed(e.Aborted(at=world.at, actor="alice", reason="not today")).until("cooldown")

    assert result(world) == "aborted"
    assert suggested_again(world)
    assert world.tick(30).state.phase is Phase.PROPOSED

    world.approve().until("canary")
