"""Switching between two settings as the load changes: each switch is judged, and each failure ends it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from pydantic import TypeAdapter

from flettner.agent.api.routes.rollouts import lasts
from flettner.agent.audit.entries import action_of, actor_of, build_entry
from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.model import Bound, Objective, Outcome, Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.regimes import LASTS_S, MOST_SWITCHES, Regime, RegimePlan
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Regimes
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.windows import Period, Schedule, Windows
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.regimes import CHECKED_S, RETRY_AFTER, describe_switching
from flettner.agent.machine.step import Machine
from tests.support.machine_stories import NOON, rules
from tests.unit.machine.test_hot_trial import CAP, HOT, HOUR, HotWorld

SHORT, BETWEEN, LONG = 400.0, 1500.0, 6000.0  # tokens of a prompt
PLAN = RegimePlan(
    metric="prompt_tokens",
    low=1000,
    high=2000,
    below=Regime(values={CAP: 4}, missed=0.05),
    above=Regime(values={CAP: 16}, missed=0.05),
)
ABORT = "alice"


@dataclass(frozen=True, slots=True)
class Switch:
    """Proposes it once."""

    plan: RegimePlan = PLAN

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        del reading
        wanted = Proposal(
            rule="PM4",
            to={CAP: 16},
            why="prompts have two lengths",
            expects="more in time",
            risks="prediction",
            source="test",
            klass="gated",
            regimes=self.plan,
        )
        return (wanted,) if context.setting.get(CAP) == 4 else ()


SLO = Slo(ttft=Objective(under_s=1.0, share=0.95))
LEAVE = Guard(bounds={CAP: Bound(min=1, max=64, octaves=3)}, cooldown_s=60)


def machine(**changes: object) -> Machine:
    wanted = {
        "strategy": "hot",
        "plan": HOUR,
        "policies": (("regimes", Switch()),),
        "slo": SLO,
        "guard": LEAVE,
    }
    return Machine(rules(**{**wanted, **changes}))


@dataclass
class Load(HotWorld):
    """Requests are in time with the cap for their prompts. `broken`: of ten, with the larger cap."""

    machine: Machine = field(default_factory=machine)
    prompt_tokens: float | None = SHORT
    broken: int = 0

    def arm(self, name: str) -> RequestCounts:
        if name in self.hot.knobs:
            right = 4 if self.prompt_tokens == SHORT else 16
            self.present_fails = 0 if right == 4 else 4
            self.candidate_fails = self.broken or (0 if right == 16 else 4)
        return super().arm(name)

    def change(self, tokens: float | None, seconds: int = 0) -> "Load":
        """The load changes, so many seconds ago; 0: long enough for a switch."""
        self.prompt_tokens = tokens
        if seconds:
            self.tick(seconds)
            return self
        self.state = replace(self.state, regimes=replace(self.regimes, other_s=LASTS_S - 2))
        self.tick(6)
        return self

    def next_cap(self) -> int:
        self.tick()
        return self.cap()

    def settle(self, limit_s: int = 3000) -> "Load":
        """Until no switch is tried."""
        for _ in range(limit_s):
            if self.state.phase not in {Phase.TRIAL, Phase.ROLLING_BACK}:
                return self
            self.tick()
        raise AssertionError(f"{self.state.phase}: {self.state.note}")

    @property
    def regimes(self) -> Regimes:
        assert self.state.regimes is not None
        return self.state.regimes


def approved(**more: object) -> Load:
    world = Load(**more)  # type: ignore[arg-type]
    world.start().until("proposed")
    world.approve()
    return world


def at_night() -> Load:
    world = approved().change(LONG).settle()
    assert world.cap() == 16
    return world


def test_the_suggestion_says_what_the_approval_covers() -> None:
    world = Load()
    world.start().until("proposed")
    suggestion = world.state.suggestions.open[0]

    assert suggestion.preflight.strategy == "hot"
    assert any("covers each later switch, at most 6 a day" in note for note in suggestion.notes)


def test_nothing_changes_while_the_load_stays() -> None:
    world = approved()
    world.tick(60)

    assert world.cap() == 4
    assert world.state.phase is Phase.OBSERVING
    assert world.regimes.above is False
    assert not world.regimes.switches


def test_it_follows_the_load_there_and_back() -> None:
    world = at_night()
    assert world.regimes.above is True
    assert world.state.outcomes[-1].result == "promoted"

    world.change(SHORT).settle()

    assert world.cap() == 4
    assert len(world.regimes.switches) == 2
    assert world.state.switching is not None
    kinds = {effect.kind for effect in world.performed}
    assert kinds <= {"route", "keep_alive", "set_knobs", "keep_knobs"}


def test_the_way_there_is_a_trial_and_the_way_back_to_the_values_before_needs_none() -> None:
    world = approved().change(LONG)
    assert world.state.phase is Phase.TRIAL
    caps = {world.next_cap() for _ in range(60)}
    assert caps == {4, 16}

    world.settle()
    world.change(SHORT)

    assert (world.state.phase, world.cap()) == (Phase.OBSERVING, 4)


def test_a_short_change_and_a_load_between_the_two_switch_nothing() -> None:
    world = approved()
    world.change(LONG, LASTS_S - 1)
    world.change(SHORT, 20)
    world.change(LONG, 15)
    assert not world.regimes.switches
    world.change(BETWEEN, 20)
    world.change(None, 20)
    assert not world.regimes.switches

    night = at_night()
    night.change(BETWEEN, LASTS_S + 10)
    assert night.cap() == 16


def test_a_second_of_the_other_load_does_not_decide_the_first_switch() -> None:
    world = approved()
    world.state = replace(world.state, regimes=replace(world.regimes, above=None))
    world.change(SHORT, LASTS_S - 1)
    world.change(LONG, 5)

    assert world.regimes.above is False
    assert not world.regimes.switches


@pytest.mark.parametrize("now", [None, BETWEEN])
def test_nothing_switches_for_a_load_that_is_not_measured_now(now: float | None) -> None:
    world = approved()
    world.feed(e.Paused(at=world.at, actor=ABORT))
    world.change(LONG).change(now, 60)
    world.feed(e.Resumed(at=world.at, actor=ABORT)).tick(10)
    assert not world.regimes.switches

    world.change(LONG, 2)
    assert len(world.regimes.switches) == 1


def test_a_target_that_rests_after_another_rollout_does_not_switch() -> None:
    world = approved()
    until = world.at + timedelta(seconds=60)
    world.state = replace(world.state, phase=Phase.COOLDOWN, until=until)
    world.change(LONG)
    assert not world.regimes.switches

    world.tick(60)
    assert len(world.regimes.switches) == 1


def test_an_approved_change_that_waits_for_a_window_is_not_ended_by_a_switch() -> None:
    world = at_night()
    never = Period(first=NOON.date(), last=NOON.date(), begin=0, end=1)
    world.machine = machine(windows=Windows((Schedule(zone=ZoneInfo("UTC"), allowed=(never,)),)))
    tokens = {"max_num_batched_tokens": 4096}
    world.feed(e.ChangeAsked(at=world.at, actor=ABORT, to=tokens, reason="more")).until("proposed")
    world.approve()
    world.change(SHORT)

    assert world.cap() == 16
    assert [suggestion.approved_by for suggestion in world.state.suggestions.open] == [ABORT]


def test_a_switch_that_is_worse_is_taken_back_and_ends_it() -> None:
    world = approved(broken=9).change(LONG).settle()
    world.tick(5)

    assert world.cap() == 4
    assert world.state.switching is None
    assert "chat-1.1 failed" in world.regimes.ending
    world.change(SHORT).change(LONG)
    assert world.cap() == 4


def test_more_late_requests_than_predicted_end_it() -> None:
    world = at_night()
    world.state = replace(world.state, regimes=replace(world.regimes, counted_s=CHECKED_S - 60))
    world.broken = 3
    world.tick(65)

    assert world.cap() == 4
    assert world.state.switching is None
    assert "requests missed the SLO with max_num_seqs 16, at most 5.1% were predicted" in world.regimes.ending


def test_an_hour_in_time_does_not_hide_ten_minutes_of_late_requests() -> None:
    world = at_night()
    hour = RequestCounts(total=36_000)
    world.state = replace(world.state, regimes=replace(world.regimes, counts=hour, counted_s=3600))
    world.tick()
    assert (world.regimes.counts.total, world.regimes.counted_s) == (10, 1)
    world.state = replace(world.state, regimes=replace(world.regimes, counted_s=CHECKED_S - 60))
    world.broken = 3
    world.tick(65)

    assert world.cap() == 4
    assert "requests missed the SLO" in world.regimes.ending


@pytest.mark.parametrize("night", [True, False])
def test_an_abort_brings_the_values_from_before_back(night: bool) -> None:
    world = at_night() if night else approved()
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(5)

    assert world.cap() == 4
    assert world.state.switching is None
    assert world.regimes.ending == "aborted by alice"


def test_an_abort_of_a_trial_ends_it() -> None:
    world = approved().change(LONG)
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(5)

    assert world.cap() == 4
    assert world.state.switching is None


def with_rollout() -> Load:
    """Another change is tried, under an approval of its own."""
    world = at_night()
    tokens = {"max_num_batched_tokens": 4096}
    world.feed(e.ChangeAsked(at=world.at, actor=ABORT, to=tokens, reason="more")).until("proposed")
    world.approve().until("trial")
    return world


def test_an_abort_by_its_id_ends_it_and_no_other_rollout() -> None:
    world = with_rollout()
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no", rollout="chat-1"))

    assert world.state.rollout is not None
    assert (world.state.phase, world.state.rollout.outcome) == (Phase.TRIAL, "running")
    assert world.regimes.ending == "aborted by alice"


def test_an_abort_of_another_rollout_does_not_end_it() -> None:
    world = with_rollout()
    assert world.state.rollout is not None
    other = world.state.rollout.id
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no", rollout=other))

    assert world.state.phase is Phase.ROLLING_BACK
    assert not world.regimes.ending


def test_an_abort_while_a_switch_is_taken_back_is_not_lost() -> None:
    world = approved().change(LONG)
    world.start()
    assert world.state.phase is Phase.ROLLING_BACK
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no", rollout="chat-1")).tick(10)

    assert world.state.switching is None
    assert world.cap() == 4


def test_values_that_somebody_else_sets_stay_and_end_it() -> None:
    world = at_night()
    world.hot.set(HOT, {CAP: 9}, (world.epoch, 10_000), None)
    world.start().tick(5)

    assert world.cap() == 9
    assert world.state.switching is None
    assert "were changed otherwise, and stay" in world.regimes.ending


def without_way_back(world: Load) -> Load:
    """The servers take caps from 8 on."""
    servers = tuple(
        replace(server, hot=server.hot and replace(server.hot, limits={CAP: (8, 16)}))
        for server in world.state.fleet.servers
    )
    world.state = replace(world.state, fleet=replace(world.state.fleet, servers=servers))
    return world


def test_the_end_says_where_the_values_from_before_cannot_come_back() -> None:
    world = without_way_back(at_night())
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no"))

    assert world.state.switching is None
    assert world.regimes.ending.startswith(
        "aborted by alice; the values of max_num_seqs stay: max_num_seqs can"
    )


def test_an_abort_while_no_server_runs_waits_for_one() -> None:
    world = at_night()
    fleet = world.state.fleet
    world.state = replace(world.state, fleet=fleet.with_exited(HOT.name))
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no", rollout="chat-1"))
    assert world.regimes.ending == "aborted by alice"
    assert world.state.switching is not None

    world.state = replace(world.state, fleet=fleet)
    world.tick(5)

    assert world.cap() == 4
    assert world.state.switching is None


@pytest.mark.parametrize("set_back", [timedelta(), timedelta(hours=2)])  # the clock, half way
def test_too_many_switches_in_a_day_end_it(set_back: timedelta) -> None:
    world = at_night()
    for number in range(MOST_SWITCHES):
        world.at -= set_back if number == MOST_SWITCHES // 2 else timedelta()
        world.change(SHORT if world.prompt_tokens == LONG else LONG).settle()
        world.tick(70)

    assert world.cap() == 4
    assert world.state.switching is None
    assert "more than 6 times in a day" in world.regimes.ending


def test_the_way_back_is_tried_again_until_it_is_done() -> None:
    world = at_night()
    world.refuses = {"set_knobs"}
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(30)
    assert world.state.switching is not None

    world.refuses = set()
    world.tick(round(RETRY_AFTER.total_seconds()) + 60)

    assert world.cap() == 4
    assert world.state.switching is None


def test_the_way_back_is_tried_ever_more_rarely() -> None:
    world = at_night()
    world.refuses = {"set_knobs"}
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no"))
    pauses = []
    for _ in range(7):
        tried = world.regimes.failed
        while world.regimes.failed == tried:
            world.tick()
        assert world.regimes.wait_until is not None
        pauses.append((world.regimes.wait_until - world.at) / RETRY_AFTER)
        world.at = world.regimes.wait_until

    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_a_clock_that_is_set_back_does_not_hold_the_way_back_up() -> None:
    world = at_night()
    world.refuses = {"set_knobs"}
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(60)
    assert world.regimes.wait_until is not None

    world.refuses = set()
    world.at -= timedelta(days=1)
    world.tick(10)

    assert world.cap() == 4
    assert world.state.switching is None


@pytest.mark.parametrize("second", range(0, 120, 30))
def test_a_restart_of_the_daemon_at_any_second_keeps_it(second: int) -> None:
    world = approved().change(LONG)
    world.tick(second)
    world.start().tick(5)

    assert world.state.switching is not None
    assert world.state.fleet.blue is not None
    world.settle()
    assert world.cap() == world.state.fleet.blue.setting[CAP]
    world.at += timedelta(minutes=31)
    world.tick(5)
    world.settle()
    assert world.cap() == 16


def test_nothing_switches_while_paused_or_outside_of_the_windows_but_back() -> None:
    world = approved()
    world.feed(e.Paused(at=world.at, actor=ABORT))
    world.change(LONG)
    assert world.cap() == 4
    world.feed(e.Resumed(at=world.at, actor=ABORT)).tick(2)
    assert world.settle().cap() == 16

    closes = NOON + timedelta(hours=1)
    hour = Period(first=NOON.date(), last=NOON.date(), begin=0, end=13 * 60)
    world.machine = machine(windows=Windows((Schedule(zone=ZoneInfo("UTC"), allowed=(hour,)),)))
    assert world.at < closes
    world.at = closes
    world.change(SHORT).settle()
    assert world.cap() == 4
    world.change(LONG).settle()
    assert world.cap() == 4


def test_other_changes_of_its_knobs_wait() -> None:
    world = approved()
    world.feed(e.ChangeAsked(at=world.at, actor=ABORT, to={CAP: 8}, reason="more"))

    assert not world.state.suggestions.open
    assert (
        "chat-1 sets max_num_seqs by the load: end that first (`flettner abort chat-1`)" in world.state.note
    )


def refused(world: Load) -> Iterator[str]:
    for _ in range(5):
        world.tick()
        yield world.state.note
        yield from (outcome.why for outcome in world.state.outcomes)


def test_it_is_refused_where_servers_would_start_or_a_bound_forbids_it() -> None:
    too_large = replace(PLAN, above=Regime(values={CAP: 65}, missed=0.1))
    beyond = replace(PLAN, above=Regime(values={CAP: 32}, missed=0.1))
    bounded = Load(machine=machine(policies=(("regimes", Switch(too_large)),)))
    unreachable = Load(machine=machine(policies=(("regimes", Switch(beyond)),)))
    cold = Load(machine=machine(policies=(("regimes", Switch(beyond)),), strategy="surge"))

    for world, why in (
        (bounded, "the bounds do not allow max_num_seqs=65"),
        (unreachable, "max_num_seqs can be 1 to 16"),
        (cold, "max_num_seqs can be 1 to 16"),
    ):
        world.start()
        assert any(why in note for note in refused(world))
        assert not world.state.suggestions.open


def test_it_rests_a_day_after_its_end() -> None:
    world = approved()
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(120)
    assert "and rests a day" in world.state.note
    world.at += timedelta(days=1)

    assert world.until("proposed").state.suggestions.open


def test_the_audit_names_approval_switches_and_end() -> None:
    world, seen = Load(), []
    feed = world.feed

    def audited(*events: e.Event) -> HotWorld:
        for event in events:
            before = world.state
            feed(event)
            action = action_of(before, world.state, event)
            if action.startswith(("regimes", "suggestion.approved", "rollout")):
                actor = actor_of(before, world.state, event)
                assert build_entry(before, world.state, event, ()).why
                seen.append((action, actor.kind))
        return world

    world.feed = audited  # type: ignore[method-assign]
    world.start().until("proposed")
    world.approve()
    world.change(LONG).settle()
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(5)

    assert list(dict.fromkeys(seen)) == [
        ("suggestion.approved", "person"),
        ("regimes.switched", "daemon"),
        ("rollout.promoted", "daemon"),
        ("regimes.ended", "person"),
    ]


def test_a_bound_that_does_not_allow_a_value_any_more_ends_it() -> None:
    world = at_night()
    world.machine = machine(guard=replace(LEAVE, bounds={CAP: Bound(min=1, max=8)}))
    world.tick(10)

    assert world.cap() == 4
    assert world.regimes.ending == "the bounds do not allow max_num_seqs=16"


@pytest.mark.parametrize("begin", [approved, at_night])
def test_the_journal_reads_it_back(begin: Callable[[], Load]) -> None:
    world = begin()

    assert TypeAdapter(State).validate_json(TypeAdapter(State).dump_json(world.state)) == world.state


def test_a_server_that_starts_again_keeps_the_values_of_its_regime() -> None:
    world = at_night()
    world.boot(HOT.name)
    world.tick(3)

    assert world.cap() == 16
    assert world.state.switching is not None


def test_outcomes_of_switches_are_remembered() -> None:
    outcome: Outcome = at_night().outcome()

    assert (dict(outcome.to), dict(outcome.before), outcome.hot) == ({CAP: 16}, {CAP: 4}, True)
    assert not [effect for effect in at_night().performed if isinstance(effect, fx.Launch)]


def test_an_abort_ends_switching_by_the_id_of_the_approval_or_of_a_switch() -> None:
    world = at_night()
    switch = world.state.rollout
    assert switch is not None
    assert isinstance(world.regimes, Regimes)

    assert lasts(world.state, switch)
    assert lasts(world.state, world.regimes)
    assert not lasts(world.state, replace(switch, id="chat-9"))
    world.feed(e.Aborted(at=world.at, actor=ABORT, reason="no")).tick(5)
    assert not lasts(world.state, switch)


def test_the_status_says_what_is_in_force_and_how_to_end_it() -> None:
    text = describe_switching(at_night().state)

    assert text.startswith("chat-1 switches by the load, now max_num_seqs 16: max_num_seqs 16 once prompts")
    assert text.endswith("`flettner abort chat-1` ends it")
    assert not describe_switching(HotWorld().state)


def test_the_status_of_the_mode_advise_says_that_the_values_stay() -> None:
    text = describe_switching(replace(at_night().state, mode="advise"))

    assert text == (
        "chat-1 is to switch by the load, but the mode advise changes nothing: max_num_seqs 16 stays"
    )
