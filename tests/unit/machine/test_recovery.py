"""A daemon may crash at any instant; the next one ends with blue or with green, never both or none."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.agent.domain import events as e
from flettner.agent.domain.model import PreflightResult, Strategy
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.step import Machine, numbered_effects
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from tests.support.machine_stories import BLUE, World, rules
from tests.support.sampling import examples


def examined(strategy: Strategy = "surge", count: int = 1, *, wrong: bool = False) -> World:
    """The change may alter answers, so golden prompts precede the canary."""
    machine = Machine(rules(exam=GoldenPromptOptions(always=True)))
    return World.servers(count, strategy, machine=machine, wrong=wrong)


STORIES = {
    "promoted": World(),
    "rolled back": World(green_fails=1),
    "fails to start": World(refuses={"launch"}),
    "swapped": World.servers(1, "swap"),
    "swapped back": World.servers(1, "swap", green_fails=1),
    "replaced": World.servers(3, "replace"),
    "replaced back": World.servers(3, "replace", green_fails=1),
    "two replaced": World.servers(2, "replace", ours=True),
    "surged": World.servers(2, "surge", ours=True),
    "examined": examined(),
    "examined and wrong": examined(wrong=True),
    "examined and swapped": examined("swap"),
    "examined, swapped and wrong": examined("swap", wrong=True),
    "examined and replaced": examined("replace", 3),
    "surged back": World.servers(2, "surge", green_fails=1),
}
LONGEST_S = 60
SETTLED = {Phase.OBSERVING, Phase.PROPOSED, Phase.COOLDOWN}


@cache
def seconds_of(story: str) -> list[World]:
    """Yield the world at each second after the approval."""
    world = STORIES[story].snapshot().start().until("proposed").approve()
    return [world.snapshot(), *(world.tick().snapshot() for _ in range(LONGEST_S))]


def world_at(story: str, seconds: int) -> World:
    """Run until the second at which the daemon crashes; pending effects are lost."""
    return seconds_of(story)[seconds].snapshot()


def settle(world: World) -> World:
    world.refuses = set()
    for _ in range(400):
        if (
            world.state.phase in SETTLED
            and world.state.effects.awaited is None
            and not numbered_effects(tuple(world.pending))
        ):
            return world.tick(2)  # the next KeepAlive restores a lost split
        world.tick()
    raise AssertionError(f"still {world.state.phase} after 400 s: {world.state.note}")


def assert_consistent(world: World) -> None:
    """Check design invariants 1 and 3: the number of servers, one setting, all traffic routed."""
    fleet = {server.name for server in world.state.fleet.servers}
    assert set(world.running) == fleet
    assert len(fleet) == len(world.old)
    assert set(world.weights) == fleet
    assert all(world.weights.values())
    assert sum(world.weights.values()) == 100
    assert len({str(server.setting) for server in world.running.values()}) == 1
    assert (world.state.greens, world.state.fleet.stopped, world.state.fleet.exited) == ((), (), ())
    assert not world.stopped


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("performed", [False, True], ids=["effects lost", "effects done, reply lost"])
def test_a_restart_at_any_second_ends_consistently(story: str, performed: bool) -> None:
    for seconds in range(LONGEST_S):
        world = world_at(story, seconds)
        if performed:
            for effect in world.pending:
                world.perform(effect)

        settle(world.start())

        assert_consistent(world)


@pytest.mark.parametrize("story", STORIES)
def test_an_abort_at_any_second_ends_consistently(story: str) -> None:
    for seconds in range(LONGEST_S):
        world = world_at(story, seconds)
        world.feed(e.Aborted(at=world.at, actor="bob", reason="stop"))

        settle(world)

        assert_consistent(world)


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("kind", ["route", "launch", "warm_up", "examine", "drain", "stop", "retire"])
def test_an_effect_that_fails_temporarily_at_any_second_ends_consistently(story: str, kind: str) -> None:
    for seconds in range(0, LONGEST_S, 4):
        world = world_at(story, seconds)
        world.refuses = {kind}
        world.tick(5)
        world.refuses = set()

        settle(world)

        assert_consistent(world)


@pytest.mark.parametrize("story", [s for s in STORIES if s not in {"promoted", "rolled back"}])
@pytest.mark.parametrize("reported", [True, False], ids=["seen", "while the daemon was dead"])
def test_any_server_that_exits_at_any_second_is_restored(story: str, reported: bool) -> None:
    for seconds in range(0, LONGEST_S, 3):
        for at in range(4):
            world = world_at(story, seconds)
            world.running = {name: replace(s, ours=True) for name, s in world.running.items()}
            world.state = all_ours(world.state)
            if at >= len(world.running):
                continue
            name = list(world.running)[at]
            world.running.pop(name)
            if reported:
                world.feed(e.ServerLost(at=world.at, server=name, why="exited with 137"))
            else:
                world.start()

            settle(world)

            assert_consistent(world)


def all_ours(state: State) -> State:
    return replace(
        state,
        fleet=replace(
            state.fleet,
            servers=tuple(replace(server, ours=True) for server in state.fleet.servers),
        ),
    )


@pytest.mark.parametrize("seconds", range(0, 24, 3))
@pytest.mark.parametrize("again", range(4))
def test_a_second_crash_during_recovery_ends_consistently(seconds: int, again: int) -> None:
    world = world_at("promoted", seconds).start().tick(again).start()

    settle(world)

    assert_consistent(world)


@pytest.mark.parametrize("seconds", range(20))
def test_a_green_that_exited_with_the_daemon_is_not_awaited(seconds: int) -> None:
    world = world_at("promoted", seconds)
    if not world.state.greens:
        return
    world.running.pop(world.state.greens[-1].name, None)
    world.pending = []

    settle(world.start())

    assert_consistent(world)


@pytest.mark.parametrize("seconds", range(20))
def test_a_blue_that_exited_with_the_daemon_is_replaced(seconds: int) -> None:
    world = (
        World(running={BLUE.name: replace(BLUE, ours=True)}).start().until("proposed").approve().tick(seconds)
    )
    assert world.state.fleet.blue is not None
    world.running.pop(world.state.fleet.blue.name, None)

    settle(world.start())

    assert_consistent(world)


def test_a_daemon_that_keeps_crashing_rolls_its_canary_back() -> None:
    world = World().start().until("proposed").approve().until("canary").tick()

    for _ in range(3):
        world.start().tick()
    settle(world)

    assert world.state.rollout is not None
    assert world.state.rollout.why == "the daemon was restarted 3 times in this rollout"


@pytest.mark.parametrize("seconds", range(0, 24, 2))
def test_advise_mode_freezes_a_running_rollout_and_approve_mode_ends_it(
    seconds: int,
) -> None:
    world = world_at("promoted", seconds)
    world.mode = "advise"
    performed = len(world.performed)

    world.start().tick(30)
    assert len(world.performed) == performed
    world.mode = "approve"
    settle(world.start())

    assert_consistent(world)
    assert world.state.rollout is not None
    assert world.state.rollout.ended_at is not None


def test_a_suggestion_that_advise_mode_did_not_check_needs_a_check_before_an_approval() -> None:
    world = World(mode="advise", preflight=PreflightResult(unchecked=True)).start().until("proposed")
    made = world.state.suggestions.open[0]

    again = world.snapshot().start()
    assert again.state.suggestions.open == (made,)
    world.mode, world.preflight = "approve", PreflightResult()
    world.start()

    assert world.state.phase is Phase.OBSERVING
    assert world.state.note.endswith("was made in advise mode, without a check by vLLM")
    world.until("proposed")
    assert [effect.kind for effect in world.performed].count("preflight") == 2


def test_flags_changed_by_a_third_party_are_adopted_and_reported() -> None:
    world = World().start().until("proposed")
    world.running[BLUE.name] = replace(BLUE, setting={"model": "m", "max_num_seqs": 32})

    world.start()

    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting["max_num_seqs"] == 32
    assert [suggestion.status for suggestion in world.state.suggestions.ended] == ["superseded"]


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
        "blue dies",
        "another dies",
        "route refused",
        "mend",
    ]
)


FLEETS = st.sampled_from([(1, "surge"), (1, "swap"), (2, "replace"), (3, "replace"), (2, "surge")])


@settings(max_examples=examples(200), deadline=None)
@given(FLEETS, st.lists(MISHAPS, max_size=40))
def test_any_order_of_faults_ends_with_the_original_servers(
    fleet: tuple[int, Strategy], faults: list[str]
) -> None:
    size, strategy = fleet
    world = World.servers(size, strategy, ours=True).start()
    for fault in faults:
        inject_fault(world, fault)
        assert sum(world.weights.values()) in ({0, 100} if strategy == "swap" or size > 1 else {100}) or (
            not world.weights
        )
        assert len(world.running) <= size + 2
    world.refuses, world.state = set(), replace(world.state, paused=True)

    settle(world.tick())

    assert_consistent(world)


def inject_fault(world: World, fault: str) -> None:  # noqa: C901 - a table of faults
    pending, at = world.state.suggestions.pending, world.at
    match fault:
        case "crash":
            world.start()
        case "approve" if world.state.suggestions.open:
            world.approve()
        case "deny" if pending:
            world.feed(e.Denied(at=at, actor="bob", suggestion=pending[0].id, reason="no"))
        case "abort":
            world.feed(e.Aborted(at=at, actor="bob", reason="stop"))
        case "ask":
            world.feed(e.ChangeAsked(at=at, actor="bob", to={"max_num_seqs": 8}, reason="8"))
        case "pause":
            world.feed(e.Paused(at=at, actor="bob"))
        case "resume":
            world.feed(e.Resumed(at=at, actor="bob"))
        case "green dies" if world.state.greens:
            green = world.state.greens[-1].name
            world.running.pop(green, None)
            world.feed(e.ServerLost(at=at, server=green, why="exited with 1"))
        case "another dies" if len(world.running) > 1:
            name = list(world.running)[-1]
            world.running.pop(name)
            world.feed(e.ServerLost(at=at, server=name, why="exited with 137"))
        case "blue dies" if world.state.fleet.blue and world.state.fleet.blue.name in world.running:
            world.running.pop(world.state.fleet.blue.name)
            world.feed(e.ServerLost(at=at, server=world.state.fleet.blue.name, why="exited with 137"))
        case "route refused":
            world.refuses = {"route"}
        case "mend":
            world.refuses = set()
        case _:
            world.tick()
