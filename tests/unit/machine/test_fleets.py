"""Fleets under faults: servers exit, return at another address, or cannot be retired."""

from dataclasses import replace

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.model import Server, Strategy
from flettner.agent.domain.state import Phase
from flettner.agent.machine.failing import NEW
from flettner.agent.machine.step import Machine
from tests.support.machine_stories import BLUE, World, rules


def lose_server(world: World, name: str) -> World:
    world.running.pop(name)
    return world.feed(e.ServerLost(at=world.at, server=name, why="exited with 137"))


def pause(world: World, *, maintenance: bool = True) -> World:
    return world.feed(e.Paused(at=world.at, actor="alice", maintenance=maintenance))


def observe_servers(world: World) -> World:
    """Observe the servers again without a restart; running effects continue."""
    return world.feed(
        e.AgentStarted(
            at=world.at,
            epoch=world.epoch,
            mode=world.mode,
            servers=tuple(world.running.values()),
            weights=dict(world.weights) or None,
        )
    )


def return_server(world: World, server: Server, address: str) -> World:
    world.running[server.name] = replace(server, address=address)
    return observe_servers(world)


def addresses(world: World) -> dict[str, str]:
    assert world.state.split.route is not None
    return {server.name: server.address for server in world.state.split.route.servers}


@pytest.mark.parametrize("strategy", ["surge", "swap"])
def test_the_only_server_may_die_while_a_change_is_checked(strategy: Strategy) -> None:
    world = World.servers(1, strategy).start().until("checking")

    lose_server(world, "vllm0").tick(5)

    assert world.state.phase is Phase.OBSERVING
    ended = [suggestion for state in world.states for suggestion in state.suggestions.ended]
    assert [suggestion.status for suggestion in ended] == ["superseded"]


def test_an_approval_does_not_outlive_the_servers_it_was_made_for() -> None:
    world = World.servers(2, "replace").start().until("proposed")
    made = world.state.suggestions.open[0]
    lose_server(world, "vllm1")

    world.approve(made=made).tick(30)

    assert world.state.rollout is None
    assert list(world.running) == ["vllm0"]
    assert world.weights == {"vllm0": 100}
    assert "vllm1 exited" in world.state.note


def test_servers_of_different_flags_are_not_changed_together() -> None:
    world = World.servers(2, "replace")
    other = world.running["vllm1"]
    world.running["vllm1"] = replace(other, setting={**other.setting, "max_model_len": 4096})

    world.start().tick(20)

    assert world.state.phase is Phase.OBSERVING
    assert "run with different flags" in world.state.note


@pytest.mark.parametrize(("silent_s", "first"), [(0.0, "vllm0"), (9.0, "vllm1")])
def test_a_server_that_errs_is_replaced_before_one_that_serves(silent_s: float, first: str) -> None:
    """One that hangs is not: it may answer again with all it has open."""
    world = World.servers(2, "replace").start().until("proposed")
    health = replace(NEW, of=20.0, bad=18.0, silent_s=silent_s)
    world.state = replace(world.state, health={**world.state.health, "vllm0": health})
    world.approve().until("draining")

    assert world.state.canary.green.like == first


def test_a_rollback_keeps_running_new_servers_until_an_old_one_is_restored() -> None:
    world = World.servers(3, "replace").start().until("proposed").approve()
    world.until("replacing").until("canary").tick(2)
    first = world.state.canary.earlier_greens[0].name

    lose_server(world, first)
    for _ in range(30):
        world.tick()
        assert sum(world.weights.values()) == 100

    assert set(world.running) == {"vllm0", "vllm1", "vllm2"}


@pytest.mark.parametrize(
    ("strategy", "servers", "split"), [("replace", 2, 50), ("replace", 3, 33), ("surge", 2, 33)]
)
def test_the_last_old_server_is_the_control_in_the_hold_step(
    strategy: Strategy, servers: int, split: int
) -> None:
    world = in_hold_step(strategy, servers)

    assert len(world.state.fleet.running) == 1
    assert abs(world.weights[world.state.fleet.running[0].name] - split) <= 1
    assert len(world.state.greens) == len(world.weights) - 1
    world.until("observing")
    assert world.state.rollout is not None
    assert world.state.rollout.outcome == "promoted"
    assert len(world.running) == servers
    assert not world.running.keys() & world.old


@pytest.mark.parametrize(("strategy", "servers"), [("replace", 2), ("replace", 3), ("surge", 2)])
def test_a_breach_in_the_hold_step_routes_to_an_old_server_at_once(strategy: Strategy, servers: int) -> None:
    world = in_hold_step(strategy, servers)
    world.green_fails = 3

    world.tick(2)

    assert world.state.phase is Phase.ROLLING_BACK
    control = world.state.fleet.running[0].name
    assert world.weights[control] > 0
    world.until("cooldown")
    assert set(world.running) == world.old


def in_hold_step(strategy: Strategy, servers: int) -> World:
    """Return a world in the hold step."""
    world = World.servers(servers, strategy).start().until("proposed").approve()
    for _ in range(200):
        canary = world.state.canary
        if canary.step == len(canary.plan.steps) - 1 and canary.step_since:
            return world
        world.tick()
    raise AssertionError(world.state.note)


@pytest.mark.parametrize("phase", ["launching", "canary", "rolling_back", "promoting"])
def test_a_server_restarted_by_docker_is_used_at_its_new_address(phase: str) -> None:
    failing = 1 if phase == "rolling_back" else 0
    world = World.servers(1, "surge", green_fails=failing).start().until("proposed").approve().until(phase)
    if "vllm0" not in world.running:
        return

    return_server(world, world.running["vllm0"], "127.0.0.1:9999").tick()

    assert addresses(world).get("vllm0", "127.0.0.1:9999") == "127.0.0.1:9999"


def test_a_lost_server_that_returns_needs_no_successor() -> None:
    world = World.servers(1, "surge").start().until("proposed").approve().until("launching")
    world.refuses = {"launch"}
    server = world.running["vllm0"]
    lose_server(world, "vllm0").tick(3)
    assert world.state.phase.value == "restoring"

    return_server(world, server, "127.0.0.1:9999").tick(60)

    assert world.state.phase in {Phase.OBSERVING, Phase.PROPOSED, Phase.CHECKING}
    assert list(world.running) == ["vllm0"]
    assert addresses(world) == {"vllm0": "127.0.0.1:9999"}


def test_servers_that_exchange_addresses_stay_distinct() -> None:
    world = World.servers(2, "replace").start().tick(3)
    removed = world.running.pop("vllm0")
    world.running["vllm1"] = replace(world.running["vllm1"], address=removed.address)

    world.start().tick(5)

    assert sorted(server.name for server in world.state.fleet.servers) == ["vllm0", "vllm1"]
    assert world.weights == {"vllm1": 100}


def test_a_new_server_that_cannot_be_retired_does_not_block_the_old_one() -> None:
    world = World.servers(1, "swap", green_fails=1).start().until("proposed").approve().until("rolling_back")
    world.refuses = {"retire"}

    world.tick(120)
    assert world.weights == {"vllm0": 100}
    world.refuses = set()
    world.tick(60)

    assert list(world.running) == ["vllm0"]


def test_a_green_still_loading_at_daemon_start_is_not_watched_yet() -> None:
    world = World().start().until("proposed").approve()
    green = world.state.canary.green
    world.running[green.name] = replace(green, address="127.0.0.1:8101")
    world.pending = []

    world.start()

    assert [server.name for server in world.state.reachable] == [BLUE.name]


def test_the_only_remaining_green_serves_all_traffic_until_an_old_server_is_restored() -> None:
    world = World.servers(2, "replace", ours=True).start().until("proposed").approve().until("canary").tick(2)

    lose_server(world, "vllm0")
    for _ in range(60):
        world.tick()
        assert any(world.weights.get(name) for name in world.running), world.weights

    assert world.state.greens == ()
    assert set(world.weights) == set(world.running) == {server.name for server in world.state.fleet.servers}
    assert len(world.running) == 2
    assert len({str(setting) for setting in world.settings().values()}) == 1
    assert not world.stopped


@pytest.mark.parametrize("seconds", range(0, 24, 2))
def test_a_starting_daemon_sets_the_route_first(seconds: int) -> None:
    world = World(green_fails=1).start().until("proposed").approve().tick(seconds + 1)

    world.start()

    assert {effect.kind for effect in world.pending} & {"route", "keep_alive"}


def test_the_reason_of_a_state_says_how_the_old_server_was_stopped() -> None:
    world = World.servers(1, "swap").start().until("proposed")
    world.how = "vllm0 sleeps: 79.0 GiB of GPU memory are free"

    world.approve().until("launching")

    assert world.state.note == world.how


def test_a_server_that_does_not_wake_at_a_rollback_is_launched_again() -> None:
    world = World.servers(1, "swap").start().until("proposed")
    world.green_fails = 5
    world.approve().until("rolling_back")
    world.refuses.add("launch")
    while world.state.effects.tries == 0:
        world.tick()
    reason = world.state.note
    world.refuses.clear()

    world.until("cooldown")

    assert reason == "launch refused"
    assert list(world.running) == ["vllm0"]
    assert world.weights == {"vllm0": 100}


def own_server() -> World:
    """A world whose only server flettner started, without suggestions."""
    running = {BLUE.name: replace(BLUE, ours=True)}
    return World(machine=Machine(rules(policies=())), running=running).start().tick(2)


@pytest.mark.parametrize("restart", [False, True])
def test_in_maintenance_a_stopped_server_stays_stopped_until_the_target_is_resumed(restart: bool) -> None:
    world = own_server()
    pause(world)
    lose_server(world, BLUE.name).tick(30)
    if restart:
        world.start().tick(30)

    assert (world.state.phase, world.running) == (Phase.OBSERVING, {})
    assert "maintenance" in world.state.note

    world.feed(e.Resumed(at=world.at, actor="alice")).tick(30)
    assert len(world.running) == 1
    assert (world.state.maintenance, world.state.phase) == (False, Phase.OBSERVING)


def test_an_ordinary_pause_ends_the_maintenance_and_starts_what_it_left_stopped() -> None:
    world = own_server()
    pause(world)
    lose_server(world, BLUE.name).tick(5)

    pause(world, maintenance=False).tick(30)

    assert len(world.running) == 1
    assert (world.state.paused, world.state.maintenance) == (True, False)


def test_a_server_that_the_operator_starts_in_maintenance_is_taken_back() -> None:
    world = own_server()
    blue = world.running[BLUE.name]
    pause(world)
    lose_server(world, blue.name).tick(5)
    return_server(world, blue, blue.address).tick(5)
    world.feed(e.Resumed(at=world.at, actor="alice")).tick(5)

    assert list(world.running) == [blue.name]
    assert world.state.phase is Phase.OBSERVING


def test_an_ordinary_pause_still_replaces_a_server_that_exits() -> None:
    world = own_server()
    pause(world, maintenance=False)
    lose_server(world, BLUE.name).tick(30)

    assert len(world.running) == 1


def test_maintenance_does_not_begin_during_a_rollout() -> None:
    world = World.servers(1, "surge").start().until("proposed")
    world.approve(made=world.state.suggestions.open[0]).until("launching")

    assert not pause(world).state.maintenance
