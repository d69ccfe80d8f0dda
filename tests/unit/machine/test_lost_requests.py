"""What a server that still had requests at the end of its drain cost the clients."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.rollout import Canary
from tests.support.machine_stories import World

OPEN = 60


def frozen() -> World:
    """A green whose drain ended with requests open."""
    world = World().start().until("proposed").approve().until("canary").tick(2)
    world.feed(e.Aborted(at=world.at, actor="alice", reason="it hangs"))
    while not isinstance(world.state.effects.awaited, fx.Drain):
        world.tick()
    world.pending = []
    number = world.state.effects.awaited_as(fx.Drain).number
    return world.feed(e.Drained(at=world.at, number=number, open=OPEN))


def observe(world: World, lost: Mapping[str, int] | None, after_s: float = 1.0) -> Canary:
    world.feed(e.Observed(at=world.at + timedelta(seconds=after_s), lost=lost))
    return world.state.canary


def test_only_the_requests_without_an_answer_from_any_server_are_lost() -> None:
    world = frozen()

    observe(world, {"chat-r1": 3, "chat-r0": 7})
    canary = observe(world, {"chat-r1": 2})

    assert (canary.undrained, canary.lost) == ({"chat-r1": OPEN}, 5)
    assert f"{OPEN} requests open" in world.state.note


@pytest.mark.parametrize(("lost", "counted"), [(None, OPEN), ({"chat-r1": 500}, OPEN), ({}, 0)])
def test_not_more_are_lost_than_were_open_and_all_of_them_where_nothing_counts(
    lost: Mapping[str, int] | None, counted: int
) -> None:
    assert observe(frozen(), lost).lost == counted


def test_what_fails_long_after_the_drain_is_not_lost_by_it() -> None:
    assert observe(frozen(), {"chat-r1": 5}, after_s=60).lost == 0


def test_a_server_without_open_requests_loses_none() -> None:
    world = World().start().until("proposed").approve().until("promoting").tick(2)

    assert observe(world, {"chat-r0": 4, "chat-r1": 4}).lost == 0
