"""Servers with several replicas: green takes the replicas' slots one at a time."""

from dataclasses import replace

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.model import Strategy
from flettner.agent.domain.state import Phase
from flettner.agent.machine.routes import equal_shares
from tests.support.machine_stories import BLUE, World

FOUR = 4


def begin(strategy: Strategy, *, servers: int = 1, replicas: int = FOUR) -> World:
    return World.servers(servers, strategy, replicas=replicas).start().until("proposed").approve()


def play(world: World, phase: str) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Return the replicas and shares of each second until the phase."""
    seen = []
    for _ in range(300):
        seen.append((world.replicas(), dict(world.weights)))
        if world.state.phase.value == phase:
            return seen
        world.tick()
    raise AssertionError(f"{phase} was not reached: {world.state.phase}, {world.state.note}")


def in_hold_step(strategy: Strategy) -> World:
    world = begin(strategy).until("replacing")
    while world.state.phase is not Phase.CANARY:
        world.tick()
    return world.tick(2)


@pytest.mark.parametrize(("strategy", "extra"), [("surge", 1), ("replace", 0)])
def test_no_more_engines_run_than_the_strategy_has_room_for(strategy: Strategy, extra: int) -> None:
    world = begin(strategy)

    seen = play(world, "observing")

    assert max(sum(replicas.values()) for replicas, _ in seen) == FOUR + extra
    assert min(sum(replicas.values()) for replicas, _ in seen) >= FOUR - 1
    assert world.replicas() == {"chat-r1": FOUR}
    assert world.state.rollout is not None
    assert world.state.rollout.outcome == "promoted"


@pytest.mark.parametrize("strategy", ["surge", "replace"])
@pytest.mark.parametrize("servers", [1, 2])
def test_each_engine_of_one_setting_gets_the_same_share_and_none_more_than_at_parity(
    strategy: Strategy, servers: int
) -> None:
    world = begin(strategy, servers=servers)

    for replicas, weights in play(world, "observing"):
        loads = {name: weight / replicas[name] for name, weight in weights.items() if weight}
        assert sum(weights.values()) == 100
        assert max(loads.values()) <= 100 / (servers * FOUR - 1) + 1


@pytest.mark.parametrize(("strategy", "shares"), [("surge", [5, 20, 80]), ("replace", [5, 25, 75])])
def test_the_steps_follow_from_the_replicas(strategy: Strategy, shares: list[int]) -> None:
    """At 5 % green's engine has less load than blue's, so that latency is not judged there."""
    world = World.servers(1, strategy, replicas=FOUR).start().until("proposed")

    suggestion = world.state.suggestions.open[0]
    assert suggestion.plan is not None
    assert [step.weight for step in suggestion.plan.steps] == shares
    assert [step.parity for step in suggestion.plan.steps] == [shares[1], shares[1], shares[2]]


@pytest.mark.parametrize("strategy", ["surge", "replace"])
def test_one_replica_of_the_old_server_is_the_control_of_the_hold_step(strategy: Strategy) -> None:
    world = in_hold_step(strategy)

    greens = FOUR if strategy == "surge" else FOUR - 1
    assert world.replicas() == {"vllm0": 1, "chat-r1": greens}
    assert world.state.split.route is not None
    assert world.state.split.route.leased is None, "the old replica could not carry what a lease gives back"
    assert world.weights["vllm0"] == round(100 / (greens + 1))


@pytest.mark.parametrize("strategy", ["surge", "replace"])
def test_a_rollback_gives_the_replicas_back_one_at_a_time(strategy: Strategy) -> None:
    world = in_hold_step(strategy)
    world.green_fails = 3

    seen = play(world, "cooldown")

    assert world.replicas() == {"vllm0": FOUR}
    assert world.weights == {"vllm0": 100}
    assert min(sum(replicas.values()) for replicas, _ in seen) >= FOUR - 1
    for replicas, weights in seen:
        assert weights["vllm0"] / replicas["vllm0"] <= 100 / (FOUR - 1) + 1


def test_a_green_that_exits_loses_all_traffic_at_once() -> None:
    world = in_hold_step("surge")
    world.running.pop("chat-r1")

    world.feed(e.ServerLost(at=world.at, server="chat-r1", why="exited with 137")).tick(2)

    assert not world.weights.get("chat-r1")
    world.until("cooldown")
    assert world.replicas() == {"vllm0": FOUR}


@pytest.mark.parametrize("strategy", ["surge", "replace"])
@pytest.mark.parametrize("second", range(0, 80, 3))
def test_a_restart_at_any_second_goes_on_or_ends_with_all_replicas(strategy: Strategy, second: int) -> None:
    world = begin(strategy).tick(second)

    world.start().tick(150)

    assert world.state.phase in {Phase.OBSERVING, Phase.COOLDOWN, Phase.PROPOSED, Phase.CHECKING}
    assert sum(world.replicas().values()) == FOUR
    assert len(world.running) == 1


@pytest.mark.parametrize("kind", ["stop", "launch", "warm_up", "route"])
@pytest.mark.parametrize("strategy", ["surge", "replace"])
def test_a_failed_effect_gives_all_replicas_back(strategy: Strategy, kind: str) -> None:
    world = begin(strategy).until("replacing")
    world.refuses.add(kind)
    world.tick(20)
    world.refuses.clear()

    world.tick(150)

    assert sum(world.replicas().values()) == FOUR
    assert len(world.running) == 1
    assert world.weights == {next(iter(world.running)): 100}


def test_a_rollback_keeps_the_replicas_that_an_autoscaler_added_while_the_daemon_was_away() -> None:
    world = World.servers(1, "surge", replicas=1).start().until("proposed").approve().until("warming")
    world.running["vllm0"] = replace(world.running["vllm0"], replicas=2)
    world.start().tick()
    assert world.state.canary.replicas == {"vllm0": 2}

    world.green_fails = 9
    world.until("cooldown")
    assert world.running["vllm0"].replicas == 2


def test_shares_follow_the_replicas() -> None:
    servers = [replace(BLUE, name=name, replicas=count) for name, count in (("a", 4), ("b", 2))]

    assert equal_shares(servers) == {"a": 67, "b": 33}


def scale(world: World, replicas: int) -> World:
    """As a person or an autoscaler does, while the daemon runs."""
    world.running["vllm0"] = replace(world.running["vllm0"], replicas=replicas)
    return world.feed(
        e.AgentStarted(
            at=world.at,
            epoch=world.epoch,
            mode=world.mode,
            servers=tuple(world.running.values()),
            weights=dict(world.weights) or None,
        )
    )


@pytest.mark.parametrize("phase", ["launching", "warming", "canary"])
def test_a_server_that_is_scaled_before_its_turn_gets_the_shares_of_its_number(phase: str) -> None:
    world = begin("surge").until(phase)

    seen = play(scale(world, 2), "observing")

    rollout = world.state.canary
    assert [step.weight for step in rollout.plan.steps] == [5, 33, 67]
    assert (rollout.outcome, rollout.restarts) == ("promoted", 0)
    assert world.replicas() == {"chat-r1": 2}
    loads = {weights.get("chat-r1", 0) for replicas, weights in seen if replicas.get("chat-r1") == 1}
    assert {5, 33} <= loads


def test_a_server_may_be_scaled_more_often_than_a_rollout_survives_restarts() -> None:
    world = begin("surge").until("canary")

    for replicas in (3, 2, 3, 4, 5):
        scale(world.tick(), replicas)

    assert world.state.phase is Phase.CANARY
    assert "vllm0 has 5 replicas now" in world.state.note
    world.until("observing")
    assert world.replicas() == {"chat-r1": 5}


def test_the_rollback_after_it_was_scaled_leaves_the_new_number() -> None:
    world = scale(begin("surge").until("canary"), 2)
    world.green_fails = 3

    world.until("cooldown")

    assert world.replicas() == {"vllm0": 2}
