"""Traffic leaves a server that fails, in every phase, and returns when it is back."""

from dataclasses import replace

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.state import Phase
from flettner.agent.machine.step import Machine
from tests.support.machine_stories import BLUE, PLAN, World, rules

GREEN = "chat-r1"
FAULTS = ("frozen", "paused", "wedged", "erring")


SLOW = replace(PLAN, steps=tuple(replace(step, at_least_s=40, at_most_s=120) for step in PLAN.steps))


def in_canary(weight: int = 50) -> World:
    world = World(machine=Machine(rules(plan=SLOW))).start().until("proposed").approve().until("canary")
    while world.weights.get(GREEN) != weight:
        world.tick()
    return world


def break_server(world: World, fault: str, name: str) -> None:
    getattr(world, fault).add(name)


def seconds_until(world: World, weights: dict[str, int], limit_s: int = 60) -> int:
    for second in range(limit_s):
        if {name: weight for name, weight in world.weights.items() if weight} == weights:
            return second
        world.tick()
    raise AssertionError(f"{world.weights} after {limit_s} s: {world.state.note}")


@pytest.mark.parametrize("weight", [5, 50])
@pytest.mark.parametrize("fault", FAULTS)
def test_green_takes_the_share_of_a_failing_blue_as_a_failover(fault: str, weight: int) -> None:
    world = in_canary(weight)
    break_server(world, fault, BLUE.name)
    took_s = seconds_until(world, {GREEN: 100})
    assert took_s <= 12
    world.tick(200)
    assert (world.state.phase, world.weights[GREEN]) == (Phase.CANARY, 100)
    assert world.state.split.planned is not None
    assert world.state.rollout is not None
    assert world.state.rollout.outcome == "running"
    assert BLUE.name in world.running


@pytest.mark.parametrize("fault", FAULTS)
def test_the_step_is_judged_from_its_beginning_when_blue_is_back(fault: str) -> None:
    world = in_canary()
    break_server(world, fault, BLUE.name)
    seconds_until(world, {GREEN: 100})
    getattr(world, fault).clear()
    seconds_until(world, {BLUE.name: 50, GREEN: 50}, limit_s=90)
    assert world.state.split.planned is None
    world.tick()
    assert world.state.canary.step_since is not None
    assert world.state.canary.blue_counts.errors == 0
    world.until("observing")
    assert world.state.outcomes[-1].result == "promoted"


def test_when_the_last_good_server_is_lost_one_that_errs_is_preferred_to_one_that_hangs() -> None:
    names = ("hangs", "errs", "serves")
    servers = [replace(BLUE, name=name, address=f"127.0.0.{n}:1") for n, name in enumerate(names, 1)]
    world = World(running={server.name: server for server in servers}).start()
    world.tick(5)
    world.frozen.add("hangs")
    world.erring.add("errs")
    seconds_until(world, {"serves": 100})

    del world.running["serves"]
    world.feed(e.ServerLost(at=world.at, server="serves", why="it exited", gone=True))

    assert seconds_until(world, {"errs": 100}) <= 1


def test_a_blue_in_its_pause_is_tried_at_once_if_green_fails_every_request() -> None:
    world = in_canary()
    world.erring.add(BLUE.name)
    seconds_until(world, {GREEN: 100})
    world.erring = {GREEN}
    took_s = seconds_until(world, {BLUE.name: 100})

    assert took_s < 30


def test_green_holds_the_traffic_without_a_lease_that_would_end_on_a_failing_server() -> None:
    world = in_canary()
    assert world.state.split.route is not None
    assert world.state.split.route.leased == GREEN
    world.frozen.add(BLUE.name)
    seconds_until(world, {GREEN: 100})
    route = world.state.split.route
    assert (route.leased, route.fallback) == (None, GREEN)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rollback_waits_until_blue_is_back(fault: str) -> None:
    world = in_canary()
    break_server(world, fault, BLUE.name)
    seconds_until(world, {GREEN: 100})
    world.feed(e.Aborted(at=world.at, actor="alice", reason="enough"))
    world.tick(30)
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.weights[GREEN] == 100
    assert GREEN in world.running
    getattr(world, fault).clear()
    world.until("cooldown")
    assert world.weights == {BLUE.name: 100}
    assert GREEN not in world.running


def test_green_stays_until_a_blue_that_erred_and_is_tried_again_has_answered() -> None:
    world = in_canary()
    world.erring.add(BLUE.name)
    seconds_until(world, {GREEN: 100})
    world.feed(e.Aborted(at=world.at, actor="alice", reason="enough"))
    seconds_until(world, {BLUE.name: 100}, limit_s=120)
    seconds_until(world, {GREEN: 100})
    assert (world.state.phase, GREEN in world.running) == (Phase.ROLLING_BACK, True)

    world.erring.clear()
    world.until("cooldown", limit_s=300)
    assert world.weights == {BLUE.name: 100}
    assert GREEN not in world.running


def test_green_gets_the_traffic_again_if_blue_freezes_while_green_drains() -> None:
    world = in_canary()
    world.feed(e.Aborted(at=world.at, actor="alice", reason="enough"))
    world.tick()
    assert world.weights[BLUE.name] == 100
    world.frozen.add(BLUE.name)
    while world.weights[BLUE.name]:
        world.pending = [effect for effect in world.pending if effect.kind != "drain"]  # it takes its time
        world.tick()
    world.tick(60)
    assert GREEN in world.running
    assert world.weights[GREEN] == 100
    world.frozen.clear()
    world.until("cooldown")
    assert world.weights == {BLUE.name: 100}


@pytest.mark.parametrize("fault", ["frozen", "wedged"])
def test_the_split_stays_if_both_fail(fault: str) -> None:
    world = in_canary()
    break_server(world, fault, BLUE.name)
    break_server(world, fault, GREEN)
    world.tick(70)
    assert set(world.state.failing) == {BLUE.name, GREEN}
    assert world.weights == {BLUE.name: 50, GREEN: 50}
    assert world.state.phase is Phase.CANARY


@pytest.mark.parametrize("apart_s", [0, 1, 4])
@pytest.mark.parametrize("back", [BLUE.name, GREEN])
@pytest.mark.parametrize("first", [BLUE.name, GREEN])
def test_of_two_servers_that_freeze_the_one_that_answers_again_gets_the_traffic(
    first: str, back: str, apart_s: int
) -> None:
    world = in_canary()
    world.frozen.add(first)
    world.tick(apart_s)
    world.frozen.add(GREEN if first == BLUE.name else BLUE.name)
    for _ in range(60):
        world.tick()
        assert world.weights == {BLUE.name: 50, GREEN: 50}
    world.frozen.remove(back)

    assert seconds_until(world, {back: 100}) <= 8


def test_a_rollback_of_a_silent_green_beside_a_frozen_blue_moves_nothing() -> None:
    world = in_canary()
    world.frozen |= {BLUE.name, GREEN}
    world.tick(10)
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="/health does not answer", gone=False))
    world.tick(30)
    assert world.weights == {BLUE.name: 50, GREEN: 50}
    world.frozen.clear()
    world.until("cooldown")
    assert world.weights == {BLUE.name: 100}


def blue_that_erred_twice() -> World:
    """Blue answers again, and waits for its next trial, which is 120 s after its second failure."""
    world = in_canary()
    world.erring.add(BLUE.name)
    seconds_until(world, {GREEN: 100})
    while world.weights != {BLUE.name: 50, GREEN: 50}:
        world.tick()
    seconds_until(world, {GREEN: 100})
    world.erring.clear()
    assert world.state.failing[BLUE.name].times == 2
    return world


@pytest.mark.parametrize("after_s", [0, 30])
def test_a_blue_in_its_pause_takes_the_traffic_of_a_green_that_hangs(after_s: int) -> None:
    world = blue_that_erred_twice().tick(after_s)
    world.frozen.add(GREEN)
    assert seconds_until(world, {BLUE.name: 100}, limit_s=30) <= 10
    world.until("cooldown")
    assert world.weights == {BLUE.name: 100}


def test_a_blue_that_hangs_too_gets_no_traffic_of_a_green_that_hangs() -> None:
    world = blue_that_erred_twice()
    world.frozen |= {BLUE.name, GREEN}
    world.tick(60)
    assert world.weights[GREEN] == 100


def test_a_blue_in_its_pause_gets_no_traffic_while_green_serves() -> None:
    world = blue_that_erred_twice()
    for _ in range(110):
        world.tick()
        assert world.weights[GREEN] == 100


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("weight", [50, 100])
def test_a_failing_green_is_rolled_back(fault: str, weight: int) -> None:
    world = in_canary(weight)
    break_server(world, fault, GREEN)
    world.until("cooldown", limit_s=60)
    assert world.weights == {BLUE.name: 100}
    assert world.state.outcomes[-1].result == ("undecided" if fault == "paused" else "rolled_back")


def test_a_green_that_freezes_while_it_is_promoted_is_rolled_back_if_blue_still_runs() -> None:
    world = in_canary(100).until("promoting")
    world.frozen.add(GREEN)
    while world.state.phase is Phase.PROMOTING:
        world.pending = [effect for effect in world.pending if effect.kind != "drain"]  # it takes its time
        world.tick()
    world.until("cooldown", limit_s=60)
    assert world.weights == {BLUE.name: 100}


def test_a_warm_green_takes_all_traffic_of_a_blue_that_froze_before() -> None:
    world = World().start().until("proposed").approve().until("launching")
    world.frozen.add(BLUE.name)
    world.until("canary")
    seconds_until(world, {GREEN: 100})


def test_a_restarted_daemon_keeps_the_failover() -> None:
    world = in_canary()
    world.frozen.add(BLUE.name)
    seconds_until(world, {GREEN: 100})
    world.start()
    world.tick(30)
    assert (world.state.phase, world.weights[GREEN]) == (Phase.CANARY, 100)
    world.frozen.clear()
    seconds_until(world, {BLUE.name: 50, GREEN: 50})


def test_a_failover_survives_a_proxy_that_does_not_answer() -> None:
    world = in_canary()
    world.frozen.add(BLUE.name)
    seconds_until(world, {GREEN: 100})
    world.feed(e.Aborted(at=world.at, actor="alice", reason="enough"))
    world.refuses = {"route"}
    world.tick(10)
    world.refuses = set()
    world.tick(10)
    assert world.weights[GREEN] == 100
    world.frozen.clear()
    world.until("cooldown")
    assert world.weights == {BLUE.name: 100}


def test_the_other_servers_of_a_fleet_carry_the_traffic_of_a_failing_one() -> None:
    world = World.servers(3, "surge", silent=False, waiting=0).start().tick(5)
    world.frozen.add("vllm1")
    seconds_until(world, {"vllm0": 50, "vllm2": 50})
    world.frozen.clear()
    seconds_until(world, {"vllm0": 34, "vllm1": 33, "vllm2": 33})


def test_a_server_that_carries_the_traffic_of_a_failing_one_does_not_free_its_slot() -> None:
    world = World.servers(2, "replace").start().until("proposed")
    world.frozen.add("vllm0")
    seconds_until(world, {"vllm1": 100})
    world.approve().until("cooldown")

    assert world.weights["vllm1"] == 100
    assert "vllm1" in world.running
    assert world.state.outcomes[-1].result == "undecided"
    assert "vllm1 cannot free its slot" in world.state.outcomes[-1].why


def test_a_lone_frozen_server_is_an_incident_and_keeps_its_traffic() -> None:
    world = World(waiting=0).start().tick(5)
    world.frozen.add(BLUE.name)
    world.tick(10)
    assert "answers neither" in world.state.failing[BLUE.name].why
    assert world.weights == {BLUE.name: 100}
    world.frozen.clear()
    world.tick(10)
    assert not world.state.failing


def test_errors_of_a_lone_server_are_left_to_its_error_budget() -> None:
    world = World(waiting=0).start().tick(5)
    world.erring.add(BLUE.name)
    world.tick(60)
    assert not world.state.failing


def test_in_advise_mode_a_failing_server_is_named_and_nothing_is_written() -> None:
    world = World.servers(2, "surge", waiting=0, mode="advise").start().tick(5)
    world.frozen.add("vllm1")
    world.tick(20)
    assert set(world.state.failing) == {"vllm1"}
    assert not world.performed


def hung_server_of_ours(restart_after_s: float | None) -> World:
    world = World.servers(
        1, "surge", ours=True, waiting=0, machine=Machine(rules(restart_after_s=restart_after_s))
    )
    world.start().tick(5)
    world.frozen.add("vllm0")
    return world.tick(60)


def test_a_hung_server_of_ours_is_started_again_if_the_config_says_so() -> None:
    world = hung_server_of_ours(20.0)
    assert "vllm0" not in world.running
    assert list(world.running) == list(world.weights)
    assert not world.state.failing


def test_a_hung_server_is_left_alone_by_default() -> None:
    world = hung_server_of_ours(None)
    assert world.weights == {"vllm0": 100}
    assert set(world.state.failing) == {"vllm0"}
