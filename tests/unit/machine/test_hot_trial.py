"""Changes of running servers: trial in blocks, verdict, and what ends it otherwise."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from pydantic import TypeAdapter

from flettner.agent.audit.entries import build_entry
from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import HotKnobs, Outcome, Proposal, Server
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.state import Phase, RecentTraffic, State, SteadyRate
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.guard import ProposalRefusal
from flettner.agent.machine.hot_trial import LEASE_S
from flettner.agent.machine.step import Machine
from tests.support.hot_servers import HotServers, knobs_of
from tests.support.machine_stories import BLUE, NOON, PLAN, RaiseSeqs, World, counts_of, reading, rules

CAP = "max_num_seqs"  # what the policy of the stories raises from 4 to 16
HOT = replace(BLUE, setting={"model": "m", CAP: 4}, ours=True)
HOUR = replace(PLAN, steps=tuple(replace(step, at_most_s=1200) for step in PLAN.steps))
VERSION = "0.30.0"  # without a flag for the cap alone


@dataclass
class HotWorld(World):
    """Servers whose cap is 16 at most while they run. `candidate_fails`: of ten requests a second at 16."""

    machine: Machine = field(default_factory=lambda: Machine(rules(strategy="hot", plan=HOUR)))
    running: dict[str, Server] = field(default_factory=lambda: {HOT.name: HOT})
    hot: HotServers = field(default_factory=lambda: HotServers(version=VERSION))
    candidate_fails: int = 0
    present_fails: int = 0

    def seconds(self) -> float:
        return (self.at - NOON).total_seconds()

    def boot(self, name: str) -> None:
        """The server starts: its cap is that of its command line, and may be 16 at most."""
        knobs = knobs_of({CAP: 16}, self.seconds)
        knobs.start["max_num_seqs"] = int(str(self.running[name].setting[CAP]))
        self.hot.knobs[name] = knobs

    def start(self) -> "HotWorld":
        for name in self.running:
            if name not in self.hot.knobs:
                self.boot(name)
        plain = self.running
        self.running = {name: self.hot.describe(server) for name, server in plain.items()}
        super().start()
        self.running = plain
        return self

    def cap(self, name: str = HOT.name) -> int:
        shown = self.hot.knobs[name].show()["in_force"]
        assert isinstance(shown, dict)
        return int(shown["max_num_seqs"])

    def arm(self, name: str) -> RequestCounts:
        if name not in self.hot.knobs:
            return super().arm(name)
        failed = self.candidate_fails if self.cap(name) == 16 else self.present_fails
        return counts_of(name, ok=10 - failed, failed=failed)

    def perform(self, effect: fx.Effect) -> Iterable[e.Event]:
        change = effect.change if isinstance(effect, fx.KeepKnobs) else effect
        if not isinstance(change, fx.SetKnobs):
            return map(self._described, super().perform(effect))
        self.performed.append(effect)
        try:
            for server in change.servers:
                self._set(server, change)
        except ActError as error:
            failed = e.EffectFailed(at=self.at, number=change.number, why=error.why)
            return (failed,) if effect is change or change.lease_s is not None else ()
        return (e.KnobsSet(at=self.at, number=change.number),) if effect is change else ()

    def _described(self, event: e.Event) -> e.Event:
        """A new server has a control endpoint, too."""
        if not isinstance(event, e.Launched):
            return event
        self.boot(event.server.name)
        return replace(event, server=self.hot.describe(event.server))

    def _set(self, server: Server, change: fx.SetKnobs) -> None:
        if "set_knobs" in self.refuses or server.name not in self.running:
            raise ActError(f"{server.name} does not answer")
        self.hot.set(server, change.values, (change.epoch, change.number), change.lease_s)

    def until_cap(self, cap: int, limit_s: int = 300) -> "HotWorld":
        for _ in range(limit_s):
            if self.cap() == cap:
                return self
            self.tick()
        raise AssertionError(f"the cap is {self.cap()}: {self.state.phase}, {self.state.note}")

    def outcome(self) -> Outcome:
        return self.state.outcomes[-1]


def trying(**more: int) -> HotWorld:
    world = HotWorld(**more)  # type: ignore[arg-type]
    world.start().until("proposed")
    world.approve()
    world.tick(2)
    assert world.state.phase is Phase.TRIAL
    return world


def test_a_suggestion_for_running_servers_says_so_and_starts_no_server() -> None:
    world = HotWorld().start().until("proposed")
    suggestion = world.state.suggestions.open[0]

    assert suggestion.preflight.strategy == "hot"
    assert any("take turns on the servers that run" in note for note in suggestion.notes)
    world.approve().tick(100)
    assert {effect.kind for effect in world.performed} <= {"route", "keep_alive", "set_knobs", "keep_knobs"}


def test_the_values_take_turns_and_a_better_one_is_kept() -> None:
    world = trying(present_fails=4)
    caps = set()
    for _ in range(1200):
        if world.state.phase is not Phase.TRIAL:
            break
        caps.add(world.cap())
        world.tick()

    assert caps == {4, 16}
    assert world.state.phase is Phase.OBSERVING
    assert world.outcome().result == "promoted"
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting[CAP] == 16
    assert world.tick(60).state.note
    assert world.cap() == 16


def test_the_audit_says_which_values_are_in_force() -> None:
    world = trying(present_fails=4)
    reasons = set()
    while world.state.phase is Phase.TRIAL:
        if isinstance(change := world.state.effects.awaited, fx.SetKnobs):
            event = e.KnobsSet(at=world.at, number=change.number)
            after, _ = world.machine.step(world.state, event)
            reasons.add(build_entry(world.state, after, event, ()).why)
        world.tick()

    assert {f"{CAP} 4 in force", f"{CAP} 16 in force, with a lease of {LEASE_S:g} s"} <= reasons


def test_a_worse_value_is_taken_back_by_one_effect() -> None:
    world = trying(candidate_fails=9)
    world.until("rolling_back", 600)
    world.tick()

    assert world.cap() == 4
    assert world.state.phase is Phase.COOLDOWN
    assert world.outcome().result == "rolled_back"
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting[CAP] == 4


def test_an_abort_takes_the_new_values_back() -> None:
    world = trying().until_cap(16)
    world.feed(e.Aborted(at=world.at, actor="alice", reason="no")).tick()

    assert world.cap() == 4
    assert (world.state.phase, world.outcome().result) == (Phase.COOLDOWN, "aborted")


def test_without_the_daemon_the_lease_takes_the_new_values_back() -> None:
    world = trying().until_cap(16)
    world.at += timedelta(seconds=LEASE_S)

    assert world.cap() == 4


def test_a_restart_of_the_daemon_ends_the_trial() -> None:
    world = trying().until_cap(16)
    world.start().tick(2)

    assert world.cap() == 4
    assert (world.state.phase, world.outcome().result) == (Phase.COOLDOWN, "undecided")


def test_a_change_that_the_server_refuses_ends_the_trial() -> None:
    world = trying()
    world.refuses = {"set_knobs"}
    world.until("rolling_back", 300)
    world.tick(30)

    assert (world.state.phase, world.outcome().result) == (Phase.COOLDOWN, "undecided")
    assert world.cap() == 4


def test_a_lease_that_cannot_be_renewed_ends_the_trial() -> None:
    world = trying().until_cap(16)
    world.refuses = {"set_knobs"}
    world.tick(3)
    world.refuses = set()
    world.tick(3)

    assert world.outcome().result == "undecided"
    assert world.cap() == 4


def test_a_server_that_exits_in_the_trial_is_restored_with_the_present_value() -> None:
    world = trying().until_cap(16)
    world.hot.knobs.pop(HOT.name)
    del world.running[HOT.name]
    world.feed(e.ServerLost(at=world.at, server=HOT.name, why="it exited")).until("restoring", 5)
    world.tick(5)

    assert world.outcome().result == "rolled_back"
    assert [(server.setting[CAP], world.cap(name)) for name, server in world.running.items()] == [(4, 4)]


def promoted_world() -> HotWorld:
    world = trying(present_fails=4)
    world.until("observing", 1500)
    assert world.cap() == 16
    return world


def test_a_server_that_starts_again_gets_the_values_in_force() -> None:
    world = promoted_world()
    world.boot(HOT.name)
    assert world.cap() == 4

    world.tick(2)

    assert world.cap() == 16


def test_a_successor_starts_with_flags_that_have_started_and_gets_the_values_in_force() -> None:
    world = promoted_world()
    world.start()  # a daemon that finds the value in force at the server
    del world.running[HOT.name], world.hot.knobs[HOT.name]
    world.feed(e.ServerLost(at=world.at, server=HOT.name, why="it exited", gone=True))
    world.until("observing", 60).tick(2)

    [launch] = [effect for effect in world.performed if isinstance(effect, fx.Launch)]
    assert launch.server.setting[CAP] == 4
    assert world.cap(launch.server.name) == 16
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting[CAP] == 16


def test_a_restart_of_the_daemon_and_of_the_server_keeps_the_value_in_force() -> None:
    world = promoted_world()
    world.boot(HOT.name)
    world.start().tick(2)

    assert world.cap() == 16
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting[CAP] == 16


def test_values_of_a_third_party_are_adopted() -> None:
    world = promoted_world()
    world.hot.set(HOT, {CAP: 9}, (world.epoch, 10_000), None)
    world.start().tick(5)

    assert world.cap() == 9
    assert world.state.knobs is None
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting[CAP] == 9


def test_a_third_party_ends_a_trial_and_its_values_stay() -> None:
    world = trying().until_cap(16)
    world.hot.set(HOT, {CAP: 9}, (world.epoch, 10_000), None)
    world.start().tick(5)

    assert (world.state.phase, world.outcome().result) == (Phase.COOLDOWN, "undecided")
    assert world.cap() == 9


def test_a_change_that_needs_a_restart_is_refused() -> None:
    world = World(machine=Machine(rules(strategy="hot")), running={HOT.name: HOT})
    world.start().tick(5)

    outcome = world.state.outcomes[-1]
    assert "cannot be changed while it runs" in outcome.why
    assert not outcome.started


@pytest.mark.parametrize("second", range(1, 100, 7))
def test_a_restart_at_any_second_leaves_the_servers_with_the_setting_in_force(second: int) -> None:
    world = trying()
    world.tick(second)
    world.start().tick(10)

    assert world.state.phase is Phase.COOLDOWN
    assert world.state.fleet.blue is not None
    assert world.cap() == world.state.fleet.blue.setting[CAP] == 4
    assert not [effect for effect in world.performed if effect.kind in {"launch", "stop", "retire", "drain"}]


def test_the_journal_reads_the_state_of_a_trial_back() -> None:
    world = trying().until_cap(16)

    assert TypeAdapter(State).validate_json(TypeAdapter(State).dump_json(world.state)) == world.state


def test_a_trial_without_traffic_ends_undecided_at_its_time_limit() -> None:
    world = trying()
    world.silent = True
    world.until("cooldown", 3000)

    assert world.outcome().result == "undecided"
    assert "no verdict within 40 min" in world.outcome().why


@pytest.mark.parametrize("strategy", ["auto", "swap"])
def test_the_running_servers_are_chosen_where_they_take_the_change(strategy: str) -> None:
    world = HotWorld(machine=Machine(rules(strategy=strategy, plan=HOUR))).start().until("proposed")

    assert world.state.suggestions.open[0].preflight.strategy == "hot"


def test_auto_starts_a_green_for_a_value_beyond_the_range() -> None:
    world = HotWorld(machine=Machine(rules(strategy="auto", policies=(("admission", RaiseSeqs(to=17)),))))
    world.start().until("proposed")

    assert world.state.suggestions.open[0].preflight.strategy == "surge"
    why = "with a restart: max_num_seqs can be 1 to 16 while chat-r0 runs, not 17"
    assert any(why in note for note in world.state.suggestions.open[0].notes)


def admitted(state: State, to: int, **changes: object) -> Suggestion | ProposalRefusal:
    guard = replace(rules().guard, cooldown_s=0, **changes)  # type: ignore[arg-type]
    proposal = Proposal(rule="Q1", to={CAP: to}, why="", expects="", risks="", source="", mitigation=True)
    at = NOON + timedelta(hours=1)
    return guard.admit(state, proposal, policy="p", at=at, reading=reading(at))


def after(*outcomes: Outcome, now: int = 8) -> State:
    hot = HotKnobs(limits={CAP: (1, 16)})
    blue = replace(HOT, setting={**HOT.setting, CAP: now}, hot=hot)
    return State(
        target="chat",
        fleet=Fleet(servers=(blue,)),
        traffic=RecentTraffic(steady=SteadyRate(4.0, NOON, NOON)),
        outcomes=outcomes,
    )


RAISED = Outcome(at=NOON, result="promoted", to={CAP: 8}, before={CAP: 4}, hot=True, rate_rps=4.0)


def test_changes_of_running_servers_are_counted_apart() -> None:
    restarts = replace(RAISED, hot=False)

    assert isinstance(admitted(after(*[restarts] * 9), 16, changes_per_day=8), Suggestion)
    assert isinstance(admitted(after(*[RAISED] * 3), 16, hot_changes_per_day=4), Suggestion)
    refused = admitted(after(*[RAISED] * 4), 16, hot_changes_per_day=4)
    assert isinstance(refused, ProposalRefusal)
    assert refused.why == "4 changes of running servers in the last 24 h, at most 4 are allowed"


def test_a_knob_is_not_moved_back_under_the_same_load() -> None:
    refused = admitted(after(RAISED), 5)

    assert isinstance(refused, ProposalRefusal)
    assert "was moved the other way at 12:00, and stays until 15:00" in refused.why
    assert isinstance(admitted(after(RAISED), 12), Suggestion)
    assert isinstance(admitted(after(replace(RAISED, rate_rps=1.0)), 5), Suggestion)
    assert isinstance(admitted(after(replace(RAISED, at=NOON - timedelta(hours=3))), 5), Suggestion)


def test_flags_that_an_owner_has_changed_are_adopted_over_the_values_in_force() -> None:
    world = promoted_world()
    world.running[HOT.name] = replace(HOT, setting={**HOT.setting, CAP: 6})
    world.boot(HOT.name)
    world.start().tick(5)

    assert world.cap() == 6
    assert world.state.fleet.blue is not None
    assert world.state.fleet.blue.setting[CAP] == 6


TWIN = replace(HOT, name="chat-r9", address="127.0.0.1:8009")


@dataclass
class Twins(HotWorld):
    """With the new values the first server fails all of its ten requests a second, its twin three."""

    always: bool = False  # the first server fails with all values
    running: dict[str, Server] = field(default_factory=lambda: {HOT.name: HOT, TWIN.name: TWIN})

    def arm(self, name: str) -> RequestCounts:
        fails = self.cap(name) == 16
        failed = 10 * (fails or self.always) if name == HOT.name else 3 * fails
        return counts_of(name, ok=10 - failed, failed=failed)


def test_errors_of_values_that_all_servers_have_move_no_traffic_between_them() -> None:
    world = Twins().start().until("proposed").approve().until("cooldown", 900)
    splits = [effect.weights for effect in world.performed if isinstance(effect, fx.Route)]

    assert world.state.outcomes[-1].result == "rolled_back"
    assert [dict(weights) for weights in splits] == [{HOT.name: 50, TWIN.name: 50}]


def test_errors_that_last_longer_than_the_values_move_the_traffic() -> None:
    world = Twins().start().until("proposed").approve().until("trial")
    assert isinstance(world, Twins)
    world.always = True
    world.until("cooldown", 900).tick(20)

    assert world.weights == {HOT.name: 0, TWIN.name: 100}


@dataclass
class CrashesWhileKeeping(Twins):
    """The new values are better; the daemon dies when one server keeps them and the other does not yet."""

    crashed: bool = False

    def arm(self, name: str) -> RequestCounts:
        return counts_of(name, ok=10 if self.cap(name) == 16 else 6, failed=0 if self.cap(name) == 16 else 4)

    def perform(self, effect: fx.Effect) -> Iterable[e.Event]:
        keeps = isinstance(effect, fx.SetKnobs) and effect.lease_s is None and effect.values.get(CAP) == 16
        if not isinstance(effect, fx.SetKnobs) or not keeps or self.crashed:
            return super().perform(effect)
        self.crashed = True
        self._set(effect.servers[0], effect)
        return ()


def test_a_crash_while_the_servers_are_to_keep_a_value_leaves_them_with_one() -> None:
    world = CrashesWhileKeeping().start().until("proposed").approve()
    assert isinstance(world, CrashesWhileKeeping)
    for _ in range(1200):
        if world.crashed:
            break
        world.tick()
    assert world.crashed
    world.start().tick(10)

    assert {world.cap(HOT.name), world.cap(TWIN.name)} == {4}
    assert world.outcome().result == "undecided"
