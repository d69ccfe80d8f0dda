"""A promoted server that runs in the adopted one's place belongs to that one's owner."""

import pytest

from agent.domain import events as e
from agent.domain.state import Phase
from tests.support.machine_stories import World

GREEN = "chat-r1"


def promoted(moved: str) -> World:
    world = World(moved=moved).start().until("proposed").approve().until("promoting").until("observing")
    assert [server.name for server in world.state.standing] == [GREEN]
    return world


@pytest.mark.parametrize("moved", [GREEN, ""], ids=["moved", "not moved"])
def test_a_server_that_its_owner_stops_is_not_started_by_us(moved: str) -> None:
    world = promoted(moved)

    world.running.pop(GREEN)
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="was scaled to 0 by a third party", external=True))

    assert (world.state.phase is Phase.RESTORING) == (not moved)


def test_a_server_that_its_owner_starts_again_serves_again() -> None:
    world = promoted(GREEN)
    server = world.running.pop(GREEN)
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="was scaled to 0 by a third party", external=True))

    world.running[GREEN] = server
    world.start().tick(3)

    assert [one.name for one in world.state.standing] == [GREEN]
    assert world.weights == {GREEN: 100}
