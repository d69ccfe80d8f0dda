"""LoRA adapters that clients load while servers run outlast a rollout and a restart."""

import pytest

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.model import Adapter
from flettner.agent.domain.state import Phase
from tests.support.machine_stories import World

SQL = Adapter(name="sql", path="/adapters/sql")
LEGAL = Adapter(name="legal", path="/adapters/legal")
BLUE, GREEN = "chat-r0", "chat-r1"


def world_with(*adapters: Adapter) -> World:
    return read(World().start(), BLUE, *adapters)


def read(world: World, server: str, *adapters: Adapter) -> World:
    world.feed(e.AdaptersRead(at=world.at, server=server, adapters=adapters))
    return world


def loads(world: World, server: str) -> list[fx.KeepAdapters]:
    return [
        effect
        for effect in world.performed
        if isinstance(effect, fx.KeepAdapters) and effect.server.name == server
    ]


def test_a_green_gets_the_adapters_of_blue_before_its_first_share() -> None:
    world = world_with(LEGAL, SQL).until("proposed").approve().until("canary")

    assert world.state.canary.green.adapters == (LEGAL, SQL)
    assert not loads(world, GREEN)


def test_a_green_that_cannot_load_an_adapter_gets_no_traffic() -> None:
    world = world_with(SQL).until("proposed")
    world.refuses.add("adapters")
    world.approve().until("cooldown", 200)

    assert "cannot load what clients use: no sql" in world.state.outcomes[-1].why
    assert world.state.outcomes[-1].result == "undecided"
    assert all(not effect.weights.get(GREEN) for effect in world.performed if isinstance(effect, fx.Route))


def test_an_adapter_loaded_at_blue_in_the_canary_reaches_green() -> None:
    world = world_with().until("proposed").approve().until("canary")
    read(world, BLUE, SQL).tick(2)

    assert [effect.load for effect in loads(world, GREEN)] == [(SQL,)]
    assert world.state.canary.green.adapters == (SQL,)


def test_an_adapter_loaded_at_green_in_the_canary_reaches_blue() -> None:
    world = world_with(LEGAL).until("proposed").approve().until("canary")
    read(world, GREEN, LEGAL, SQL).tick(2)

    assert [effect.load for effect in loads(world, BLUE)] == [(SQL,)]


def test_an_adapter_unloaded_at_blue_in_the_canary_leaves_green() -> None:
    world = world_with(LEGAL, SQL).until("proposed").approve().until("canary")
    read(world, BLUE, SQL).tick(2)

    assert [effect.unload for effect in loads(world, GREEN)] == [("legal",)]
    assert world.state.fleet.adapters == (SQL,)


def test_no_step_passes_while_green_lacks_an_adapter() -> None:
    world = world_with().until("proposed").approve().until("canary")
    world.refuses.add("adapters")
    read(world, BLUE, SQL).tick(40)

    assert (world.state.phase, world.state.canary.step) == (Phase.CANARY, 0)
    assert "chat-r1 does not serve the adapter sql yet" in world.state.canary.waits


def test_without_a_rollout_nothing_is_loaded_anywhere() -> None:
    world = world_with(SQL).tick(30)

    assert not loads(world, BLUE)


def test_a_server_that_exited_is_replaced_by_one_with_its_adapters() -> None:
    world = world_with(SQL).until("proposed").approve().until("observing", 600)
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="exited with code 1")).until("restoring")
    launched = [effect for effect in world.performed if isinstance(effect, fx.Launch)][-1]

    assert launched.server.adapters == (SQL,)


@pytest.mark.parametrize("phase", ["observing", "canary"])
def test_an_adapter_with_another_path_takes_the_place_of_the_first(phase: str) -> None:
    world = world_with(SQL)
    if phase == "canary":
        world.until("proposed").approve().until("canary")
    newer = Adapter(name="sql", path="/adapters/sql-2")
    read(world, BLUE, newer)

    assert world.state.fleet.adapters == (newer,)


def test_what_a_server_that_is_not_known_serves_changes_nothing() -> None:
    world = world_with(SQL)
    read(world, "chat-r9", LEGAL)

    assert world.state.fleet.adapters == (SQL,)


def test_the_operators_workload_that_begins_anew_unloads_nothing() -> None:
    """On Kubernetes the promoted server moves into the old one's workload, under whose name it starts."""
    world = world_with(SQL).until("proposed").approve()
    world.until("promoting", 600)
    while not isinstance(world.state.effects.awaited, fx.Retire):
        world.tick()
    read(world, BLUE).until("observing", 60)

    assert world.state.fleet.adapters == (SQL,)
    assert [server.adapters for server in world.state.fleet.servers] == [(SQL,)]


def test_a_blue_that_its_owner_starts_again_in_the_canary_gets_its_adapters_back() -> None:
    world = world_with(SQL).until("proposed").approve().until("canary")
    world.feed(e.ServerLost(at=world.at, server=BLUE, why="was restarted by the kubelet", gone=False))
    read(world, BLUE).tick(2)

    assert world.state.fleet.adapters == (SQL,)
    assert [effect.load for effect in loads(world, BLUE)][:1] == [(SQL,)]


def test_an_adapter_that_blue_lost_as_the_rollout_ended_keeps_no_later_one_waiting() -> None:
    world = world_with(SQL).until("proposed").approve().until("canary")
    world.refuses.add("adapters")  # what it had loaded is not there any more
    world.feed(e.ServerLost(at=world.at, server=BLUE, why="was restarted by the kubelet", gone=False))
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="exited with code 1"))
    world.until("cooldown", 200).tick(10)

    assert [server.adapters for server in world.state.fleet.servers] == [()]
    assert world.state.fleet.adapters == ()
