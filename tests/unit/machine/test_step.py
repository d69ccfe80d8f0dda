"""Rollouts of the machine against a simulated world."""

import builtins
import importlib
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.model import Approvers, Server
from flettner.agent.domain.state import Phase
from tests.support.machine_stories import BLUE, World, counts_of


def promoted() -> World:
    return World().start().until("proposed").approve().until("observing")


def test_a_good_change_is_suggested_approved_and_promoted() -> None:
    world = promoted()

    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting["max_num_seqs"] == 16
    assert world.settings() == {"chat-r1": {"model": "m", "max_num_seqs": 16}}
    assert world.weights == {"chat-r1": 100}
    assert world.state.rollout is not None
    assert world.state.rollout.outcome == "promoted"
    assert world.state.rollout.exposed.total > 45
    assert [o.result for o in world.state.outcomes] == ["promoted"]


def test_step_imports_nothing_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(load: Callable[..., object]) -> Callable[..., object]:
        deciding = threading.get_ident()  # other threads of the test runner may import

        def only_others(*given: object, **named: object) -> object:
            if threading.get_ident() == deciding:
                raise AssertionError(f"an import while the machine decides: {given[0]}")
            return load(*given, **named)

        return only_others

    world = World().start()
    with monkeypatch.context() as patch:  # ends before the test runner reports a failure, which imports
        patch.setattr(importlib, "import_module", refuse(importlib.import_module))
        patch.setattr(builtins, "__import__", refuse(builtins.__import__))
        world.until("proposed").approve().until("observing")

    assert world.weights == {"chat-r1": 100}


def test_a_bad_green_is_rolled_back_and_its_value_not_suggested_again() -> None:
    world = World(green_fails=1).start().until("proposed").approve().until("cooldown")

    assert world.settings() == {BLUE.name: dict(BLUE.setting)}
    assert world.weights == {BLUE.name: 100}
    assert world.state.rollout is not None
    assert world.state.rollout.outcome == "rolled_back"
    assert world.state.rollout.exposed.errors > 0
    assert "requests failed" in world.state.rollout.why
    world.until("observing").tick(5)
    assert world.state.phase is Phase.OBSERVING
    assert "was tried and rolled back" in world.state.note


def test_every_split_sums_to_100_and_green_always_has_a_lease_while_blue_lives() -> None:
    world = promoted()

    routes = [effect for effect in world.performed if isinstance(effect, fx.Route)]
    assert [list(r.weights.values()) for r in routes] == [
        [100],
        [95, 5],
        [50, 50],
        [0, 100],
        [100, 0],
        [100],
    ]
    assert [r.leased for r in routes] == [None, "chat-r1", "chat-r1", "chat-r1", None, None]


def test_blue_is_retired_only_after_a_drain_at_weight_0() -> None:
    kinds = [effect.kind for effect in promoted().performed if effect.kind != "keep_alive"]

    assert kinds[-4:] == ["route", "drain", "retire", "route"]


@pytest.mark.parametrize(
    ("kind", "result"), [("launch", "failed"), ("warm_up", "failed"), ("route", "undecided")]
)
def test_a_failed_effect_before_promotion_rolls_back_to_blue(kind: str, result: str) -> None:
    world = World().start().until("proposed").tick(2)
    world.refuses = {kind}
    world.approve().tick(4)
    world.refuses = set()
    world.until("cooldown")

    assert world.settings() == {BLUE.name: dict(BLUE.setting)}
    assert world.state.rollout is not None
    assert world.state.rollout.why == f"{kind} refused"
    assert world.state.canary.log == ("last",)
    assert world.state.outcomes[-1].result == result


@pytest.mark.parametrize("kind", ["route", "drain"])
def test_a_promotion_tries_again_what_the_proxy_refused_and_goes_on(kind: str) -> None:
    world = World().start().until("proposed").approve().until("promoting")
    world.refuses = {kind}
    world.tick(8)
    assert (world.state.phase, world.weights["chat-r1"]) == (Phase.PROMOTING, 100)
    world.refuses = set()
    world.until("observing")

    assert world.state.canary.outcome == "promoted"
    assert world.weights == {"chat-r1": 100}


def test_a_promotion_that_never_drains_the_old_server_is_rolled_back() -> None:
    world = World().start().until("proposed").approve().until("promoting")
    world.refuses = {"drain"}
    world.until("rolling_back", limit_s=120)
    world.refuses = set()
    world.until("cooldown")

    assert world.settings() == {BLUE.name: dict(BLUE.setting)}
    assert world.state.canary.why == "could not promote: drain refused"
    assert world.state.outcomes[-1].result == "undecided"


def test_a_failed_route_to_blue_is_retried_until_it_succeeds() -> None:
    world = World(green_fails=1).start().until("proposed").approve().until("canary").tick()
    world.refuses = {"route"}
    world.tick(10)
    assert world.state.phase is Phase.ROLLING_BACK
    world.refuses = set()

    world.until("cooldown")

    assert world.weights == {BLUE.name: 100}


@pytest.mark.parametrize("phase", ["launching", "warming", "canary", "promoting"])
def test_an_abort_by_an_operator_wins(phase: str) -> None:
    world = World().start().until("proposed").approve().until(phase)

    world.feed(e.Aborted(at=world.at, actor="alice", reason="not today")).until("cooldown")

    assert world.weights in ({BLUE.name: 100}, {})
    assert list(world.running) == [BLUE.name]
    assert world.state.rollout is not None
    assert world.state.rollout.why == "aborted by alice: not today"


@pytest.mark.parametrize("phase", ["launching", "warming", "canary", "promoting"])
def test_a_green_that_exits_is_rolled_back_with_its_last_log_lines(phase: str) -> None:
    world = World().start().until("proposed").approve().until(phase)

    world.feed(e.ServerLost(at=world.at, server="chat-r1", why="exited with 1", log=("boom",))).until(
        "cooldown"
    )

    assert list(world.running) == [BLUE.name]
    assert world.state.rollout is not None
    assert world.state.canary.log == ("boom",)


def test_an_outdated_outcome_changes_nothing() -> None:
    world = World().start().until("proposed").approve()
    stale = e.Launched(at=world.at, number=1, server=replace(BLUE, name="chat-r9"))

    before = world.state
    world.feed(stale)

    assert world.state == before


@pytest.mark.parametrize("what", ["id", "digest", "expired", "paused"])
def test_nothing_starts_without_an_approval_of_the_shown_suggestion(what: str) -> None:
    world = World().start().until("proposed")
    suggestion = world.state.suggestions.open[0]
    approval = e.Approved(at=world.at, actor="alice", suggestion=suggestion.id, digest=suggestion.digest)
    wrong = {
        "id": replace(approval, suggestion="chat-s9"),
        "digest": replace(approval, digest="sha256:0"),
        "expired": replace(approval, at=suggestion.expires_at),
        "paused": approval,
    }[what]
    if what == "paused":
        world.feed(e.Paused(at=world.at, actor="alice"))

    world.feed(wrong)

    assert world.state.phase is Phase.PROPOSED


OTHER = {**BLUE.setting, "max_model_len": 4096}


def test_an_approval_of_a_change_to_another_setting_starts_nothing() -> None:
    world = World().start().until("proposed")
    world.state = replace(
        world.state, fleet=replace(world.state.fleet, servers=(replace(BLUE, setting=OTHER),))
    )
    pending = list(world.pending)

    world.approve()

    [suggestion] = world.state.suggestions.ended
    assert (world.state.phase, suggestion.status) == (Phase.OBSERVING, "superseded")
    assert world.state.note == "chat-s1 was made for a setting that is no longer in force"
    assert (world.state.rollout, world.pending) == (None, pending)


def test_one_server_changed_by_hand_blocks_the_start() -> None:
    world = World.servers(2, "surge").start().until("proposed")
    world.state = replace(
        world.state,
        fleet=replace(
            world.state.fleet,
            servers=(
                world.state.fleet.servers[0],
                replace(world.state.fleet.servers[1], setting=OTHER),
            ),
        ),
    )

    world.approve()

    assert (world.state.phase, world.state.rollout) == (Phase.OBSERVING, None)


def test_auto_mode_starts_nothing_if_the_setting_changed_during_the_check() -> None:
    world = World(mode="auto").start().until("checking")
    world.state = replace(
        world.state, fleet=replace(world.state.fleet, servers=(replace(BLUE, setting=OTHER),))
    )

    world.tick()

    assert world.state.rollout is None


def test_advise_mode_requests_no_effects() -> None:
    world = World(mode="advise").start().tick(10)
    world.approve().tick(10)

    assert world.state.phase is Phase.PROPOSED
    assert [effect.kind for effect in world.performed] == ["preflight"]  # reads only


def test_auto_mode_approves_a_bounded_change_and_names_the_bound() -> None:
    world = World(mode="auto").start().until("launching")

    by = world.state.canary.suggestion.decided_by
    assert by == "auto mode, inside the bounds max_num_seqs in 1..64"


@pytest.mark.parametrize("approval", ["any", "other"])
def test_an_operator_approves_their_own_proposal_unless_the_config_asks_for_another(
    approval: Approvers,
) -> None:
    world = World(waiting=0)
    world.start().tick().feed(e.ChangeAsked(at=world.at, actor="alice", to={"max_num_seqs": 8}, reason="try"))
    made = world.until("proposed").state.suggestions.open[0]
    restarted = e.AgentStarted(at=world.at, epoch=2, mode="approve", servers=(BLUE,), approval=approval)
    world.feed(restarted).approve("alice", made)

    assert world.state.phase is (Phase.PROPOSED if approval == "other" else Phase.LAUNCHING)
    assert world.approve("bob", made).state.phase is Phase.LAUNCHING


def test_another_operator_is_needed_only_for_what_an_operator_proposed() -> None:
    world = World().start().until("proposed")
    made = world.state.suggestions.open[0]
    world.state = replace(world.state, approval="other")

    assert world.approve(made.policy).state.phase is Phase.LAUNCHING


def test_a_denied_value_is_not_suggested_again() -> None:
    world = World().start().until("proposed")

    world.feed(
        e.Denied(at=world.at, actor="alice", suggestion=world.state.suggestions.open[0].id, reason="too much")
    ).tick(5)

    assert world.state.phase is Phase.OBSERVING
    assert "was denied: by alice" in world.state.note


def test_an_operator_may_request_a_change_that_no_policy_suggests() -> None:
    world = World(waiting=0).start().tick()

    world.feed(e.ChangeAsked(at=world.at, actor="alice", to={"max_num_seqs": 1}, reason="try"))
    assert world.state.phase.value == "checking"
    world.tick()

    assert world.state.phase is Phase.PROPOSED
    assert world.state.suggestions.open[0].proposal.to == {"max_num_seqs": 1}


def test_an_adopted_server_that_exits_is_left_to_its_owner() -> None:
    world = World().start().tick()

    world.feed(e.ServerLost(at=world.at, server=BLUE.name, why="exited with 0")).tick(3)

    assert world.state.phase is Phase.OBSERVING or world.state.phase is Phase.PROPOSED
    assert not [effect for effect in world.performed if effect.kind == "launch"]


def test_a_promoted_server_that_exits_is_restarted() -> None:
    world = promoted()
    world.running.clear()

    world.feed(e.ServerLost(at=world.at, server="chat-r1", why="exited with 137")).until("observing")

    assert world.settings() == {"chat-r2": {"model": "m", "max_num_seqs": 16}}
    assert world.weights == {"chat-r2": 100}


def test_a_blue_that_exits_in_the_canary_leaves_all_traffic_to_green() -> None:
    world = World().start().until("proposed").approve().until("canary").tick()
    world.running.pop(BLUE.name)

    world.feed(e.ServerLost(at=world.at, server=BLUE.name, why="exited with 137")).until("observing")

    assert world.weights == {"chat-r1": 100}
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.name == "chat-r1"


def test_without_any_server_the_configured_command_is_started() -> None:
    world = World(running={}).start().tick(5)

    assert world.weights == {"chat-r1": 100}
    assert world.settings() == {"chat-r1": {}}


def test_an_orphaned_own_server_is_retired_at_start() -> None:
    world = World()
    world.running["chat-r7"] = Server(name="chat-r7", setting={}, address="127.0.0.1:8107")

    world.start().tick(2)

    assert list(world.running) == [BLUE.name]


def test_a_canary_without_a_verdict_is_rolled_back_at_its_deadline() -> None:
    world = World(silent=True).start().until("proposed").approve().until("canary")

    world.until("rolling_back")

    assert "no verdict at 5 % within 60 s" in world.state.note


def test_a_blue_that_hangs_is_never_replaced_or_stopped() -> None:
    for phase in ("observing", "launching", "warming", "canary"):
        world = World(running={BLUE.name: replace(BLUE, ours=True)}).start().tick()
        if phase != "observing":
            world.until("proposed").approve().until(phase)

        world.feed(
            e.ServerLost(at=world.at, server=BLUE.name, why="/health does not answer", gone=False)
        ).tick(1)

        assert world.state.fleet.blue is not None
        assert world.state.fleet.blue.name == BLUE.name
        assert not [fx_ for fx_ in world.performed if fx_.kind == "retire"]


def test_a_blue_that_exits_during_a_rollback_leaves_the_traffic_to_green() -> None:
    world = World(running={BLUE.name: replace(BLUE, ours=True)}).start().until("proposed").approve()
    world.until("canary").tick(3)
    world.feed(e.Aborted(at=world.at, actor="alice", reason="no"))
    world.running.pop(BLUE.name)

    world.feed(e.ServerLost(at=world.at, server=BLUE.name, why="exited with 137"))
    served = []
    for _ in range(20):
        world.tick()
        served.append([name for name, weight in world.weights.items() if weight and name in world.running])

    assert all(served[2:])
    assert world.state.fleet.blue is not None
    assert world.settings() == {"chat-r2": {"model": "m", "max_num_seqs": 4}}
    assert world.weights == {"chat-r2": 100}


def test_no_traffic_returns_to_a_blue_that_exited() -> None:
    world = World().start().until("proposed").approve().until("promoting")
    world.running.pop(BLUE.name)
    world.feed(e.ServerLost(at=world.at, server=BLUE.name, why="exited with 0"))

    world.feed(e.Aborted(at=world.at, actor="alice", reason="too late")).until("observing")

    assert world.weights == {"chat-r1": 100}


def test_a_successor_that_exits_at_once_is_replaced() -> None:
    world = promoted()
    world.running.clear()
    world.feed(e.ServerLost(at=world.at, server="chat-r1", why="exited with 137"))
    while world.state.fleet.blue is None or world.state.fleet.blue.name != "chat-r2":
        world.tick()
        if world.state.phase is not Phase.RESTORING:
            break
    if world.state.phase is Phase.RESTORING:
        world.pending.clear()
        world.running.clear()
        world.feed(e.ServerLost(at=world.at, server="chat-r2", why="exited with 1"))

    world.until("observing").tick(3)

    assert world.state.fleet.blue is not None
    assert list(world.running) == [world.state.fleet.blue.name]


def test_a_launch_that_kills_blue_is_remembered() -> None:
    world = World(running={BLUE.name: replace(BLUE, ours=True)}).start().until("proposed").approve()
    world.running.pop(BLUE.name)

    world.feed(e.ServerLost(at=world.at, server=BLUE.name, why="killed by the kernel: out of memory"))
    world.until("observing").tick(90)

    assert [outcome.result for outcome in world.state.outcomes] == ["failed"]
    assert "was tried and failed" in world.state.note
    assert world.state.rollout is not None
    assert world.state.rollout.ended_at is not None


def test_old_evidence_promotes_nothing() -> None:
    world = World().start().until("proposed").approve().until("canary")
    while world.state.rollout is None or world.state.canary.step < 2 or world.state.canary.step_since is None:
        world.tick()
    world.tick(2)
    world.silent = True
    plan = world.state.rollout.plan
    slow = replace(plan, steps=(*plan.steps[:2], replace(plan.steps[2], at_least_s=90, at_most_s=300)))
    world.state = replace(world.state, rollout=replace(world.state.rollout, plan=slow))

    world.until("rolling_back", limit_s=400)

    assert "green has answered no request for 60 s" in world.state.note


def test_records_that_arrive_after_the_rollback_are_counted_as_exposed() -> None:
    world = World(green_fails=1).start().until("proposed").approve().until("cooldown")
    assert world.state.rollout is not None
    before = world.state.rollout.exposed

    world.feed(e.Observed(at=world.at, arms={"chat-r1": counts_of("chat-r1", ok=1, failed=2)}))

    assert world.state.rollout is not None
    assert world.state.rollout.exposed == before + counts_of("chat-r1", ok=1, failed=2)


def test_a_failed_effect_is_retried_after_the_clock_was_set_back_an_hour() -> None:
    world = World(refuses={"retire"}, green_fails=1).start().until("proposed").approve()
    world.until("rolling_back").tick(3)
    world.refuses = set()
    world.at -= timedelta(hours=1)

    world.tick(35)

    assert "retire" in [effect.kind for effect in world.performed]
    assert set(world.running) == {BLUE.name}


def test_an_old_server_that_exited_is_drained_in_case_it_was_restarted() -> None:
    world = World().start().until("proposed").approve().until("canary")
    world.feed(e.ServerLost(at=world.at, server=BLUE.name, why="exited"))

    world.until("observing")

    kinds = [effect.kind for effect in world.performed if effect.kind != "keep_alive"]
    assert kinds[-3:] == ["drain", "retire", "route"]


def test_a_failed_split_is_retried_after_the_cooldown_ends() -> None:
    world = World(green_fails=1).start().until("proposed").approve().until("cooldown")
    while world.state.until is not None and world.at < world.state.until - timedelta(seconds=2):
        world.tick()
    world.refuses = {"route"}
    world.start().until("observing")
    world.refuses = set()

    world.tick(5)

    assert world.state.effects.awaited is None
    assert world.weights == {BLUE.name: 100}


@pytest.mark.parametrize("by_admin", [False, True])
def test_an_admin_s_pause_is_ended_by_an_admin(*, by_admin: bool) -> None:
    world = World().start()
    world.feed(e.Paused(at=world.at, actor="root", by_admin=True))
    world.feed(e.Paused(at=world.at, actor="alice"))

    world.feed(e.Resumed(at=world.at, actor="alice", by_admin=by_admin))

    assert world.state.paused is not by_admin
