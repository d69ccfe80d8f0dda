"""Fewer servers: the trial with the load of a peak, the stop, and what lets all of them serve again."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from flettner.agent.audit.entries import build_entry
from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import SERVERS, Bound, PreflightResult, Slo
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.failing import NEW
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.step import Machine, state_without_counts
from flettner.agent.machine.transitions import Rules
from flettner.performance_model.band import Band
from flettner.policies.spare_servers import SpareServers
from tests.support.machine_stories import NOON, World, counts_of, rules

PEAK, EACH = 8.0, 5.0  # requests/s: of last week, and that a server carries
LIMIT = 9  # 90 % of two servers
PASSED_S = 130


def saving_rules(**more: object) -> Rules:
    return rules(saves=True, policies=(("spare_servers", SpareServers()),), slo=Slo(errors=0.95), **more)


def headroom(peak: float = PEAK, servers: int = 4, hours: int = 168) -> Headroom:
    capacity = Band(value=6 * servers, low=EACH * servers, high=7 * servers)
    return Headroom(
        made_at=NOON,
        capacity_rps=capacity,
        share=0.95,
        peak_rps=peak,
        hours=hours,
        servers=servers,
        enough=2,
        certain_rps=EACH,
        recorded_rps=PEAK,
    )


@dataclass
class SavingWorld(World):
    """Servers that share `rate` requests a second; `late` of ten are bad."""

    machine: Machine = field(default_factory=lambda: Machine(saving_rules()))
    headroom: Headroom | None = field(default_factory=headroom)
    waiting: float = 0
    rate: int = 6
    late: int = 0
    open: int = 0  # requests of a server at the end of its drain
    stuck: set[str] = field(default_factory=set)  # servers whose start has no end

    def arm(self, name: str) -> RequestCounts:
        if name in self.frozen:
            return super().arm(name)
        asked = round(self.rate * self.weights[name] / 100)
        failed = asked * self.late // 10
        return counts_of(name, ok=asked - failed, failed=failed)

    def perform(self, effect: fx.Effect) -> Iterable[e.Event]:
        if isinstance(effect, fx.Drain) and self.open and "drain" not in self.refuses:
            self.performed.append(effect)
            return (e.Drained(at=self.at, number=effect.number, open=self.open),)
        if isinstance(effect, fx.Launch) and effect.server.name in self.stuck:
            return ()
        return super().perform(effect)


def four(**more: Any) -> SavingWorld:  # noqa: ANN401
    world = SavingWorld.servers(4, "save", **more)
    assert isinstance(world, SavingWorld)
    return world


def on_trial(**more: Any) -> SavingWorld:  # noqa: ANN401
    world = four(**more)
    world.start().until("proposed").approve().tick(2)
    assert world.state.phase is Phase.SAVING
    return world


def saved(**more: Any) -> SavingWorld:  # noqa: ANN401
    world = on_trial(**more)
    world.until("observing", PASSED_S)
    assert world.state.fleet.spared
    return world


def carrying(world: World) -> set[str]:
    return {name for name, weight in world.weights.items() if weight}


def test_the_suggestion_says_what_happens_and_waits_for_a_person() -> None:
    world = four()
    world.machine = Machine(saving_rules(guard=Guard(bounds={SERVERS: Bound(min=1)}, cooldown_s=60)))
    world.mode = "auto"
    world.start().until("proposed").tick(60)

    suggestion = world.state.suggestions.open[0]
    assert suggestion.proposal.to == {SERVERS: 2}
    assert suggestion.before == {SERVERS: 4}
    assert suggestion.proposal.klass == "gated"
    assert any("start again without another approval" in note for note in suggestion.notes)
    assert world.state.phase is Phase.PROPOSED


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"headroom": headroom(peak=13.0)}, "80 % of three servers is 12"),
        ({"headroom": headroom(hours=100)}, "the week is not known"),
        ({"machine": Machine(replace(saving_rules(), saves=False))}, "off by default"),
        ({"mode": "advise"}, "advice only"),
    ],
)
def test_nothing_is_saved_where_it_is_needed_or_not_wanted(more: dict[str, object], why: str) -> None:
    world = four(**more)
    world.start().tick(120)

    assert world.state.phase in {Phase.OBSERVING, Phase.PROPOSED}, why
    assert bool(world.state.suggestions.open) is (world.mode == "advise")
    assert len(world.running) == 4
    assert not {"stop", "drain"} & {effect.kind for effect in world.performed}


def test_the_least_number_of_servers_is_the_operators_bound_and_a_step_halves_at_most() -> None:
    bounded = four(headroom=headroom(peak=2.0))
    bounded.machine = Machine(saving_rules(guard=Guard(bounds={SERVERS: Bound(min=3)}, cooldown_s=60)))
    free = four(headroom=headroom(peak=2.0))

    for world, least in ((bounded, 3), (free, 2)):
        world.start().until("proposed")
        assert world.state.suggestions.open[0].proposal.to == {SERVERS: least}


def test_the_trial_leaves_all_servers_up_and_the_stop_comes_after_the_load_of_a_peak() -> None:
    world = on_trial()
    assert carrying(world) == {"vllm0", "vllm1"}
    assert len(world.running) == 4

    world.tick(55)
    assert len(world.running) == 4
    world.until("observing", PASSED_S).tick(2)

    assert set(world.running) == {"vllm0", "vllm1"}
    assert set(world.stopped) == {"vllm2", "vllm3"}
    assert world.weights == {"vllm0": 50, "vllm1": 50}
    assert world.state.saving.outcome == "promoted"
    assert world.state.outcomes[-1].result == "promoted"


def test_a_server_of_which_most_requests_fail_is_spared_first() -> None:
    world = four()
    world.start().until("proposed")
    failing = replace(NEW, of=40.0, bad=36.0)
    world.state = replace(world.state, health={**world.state.health, "vllm0": failing})
    world.approve().tick(2)

    assert carrying(world) == {"vllm1", "vllm2"}


def test_a_second_word_of_an_exit_by_its_owner_starts_no_server_in_place_of_one_that_serves() -> None:
    world = four()
    world.start().until("proposed").approve().tick(2)
    world.running.pop("vllm0")
    exited = e.ServerLost(at=world.at, server="vllm0", why="it exited")
    world.feed(exited)
    world.pending = []  # the split's reply is lost with the daemon
    world.start().feed(exited).tick(9)

    assert not [effect for effect in world.performed if isinstance(effect, fx.Launch | fx.Retire)]
    assert [server.name for server in world.state.fleet.running] == ["vllm1", "vllm2", "vllm3"]
    assert carrying(world) == {"vllm1", "vllm2", "vllm3"}
    assert world.state.phase is Phase.OBSERVING


@pytest.mark.parametrize("seconds", [5, PASSED_S])  # in the trial, and later
def test_other_flags_of_a_server_end_the_saving_that_was_judged_with_the_ones_before(seconds: int) -> None:
    world = on_trial().tick(seconds)
    other = world.running["vllm0"]
    world.running["vllm0"] = replace(other, setting={**other.setting, "max_num_seqs": 6})
    world.start().tick(9)

    assert "a third party has changed the flags of vllm0" in world.state.saving.why
    assert carrying(world) == {"vllm0", "vllm1", "vllm2", "vllm3"}


def test_a_night_is_no_test_and_a_day_without_a_peak_ends_the_trial() -> None:
    world = on_trial(rate=2)
    world.tick(240)
    assert world.state.phase is Phase.SAVING
    assert world.state.saving.tested_minutes == 0

    world.at += timedelta(hours=26)
    world.tick(4)

    assert world.state.outcomes[-1].result == "undecided"
    assert carrying(world) == {"vllm0", "vllm1", "vllm2", "vllm3"}


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"late": 4}, "rolled_back"),
        ({"rate": 20}, "undecided"),
        ({"blind": "Envoy has closed its connection"}, "undecided"),
        ({"frozen": {"vllm0"}}, "undecided"),
    ],
)
@pytest.mark.parametrize("stage", [on_trial, saved])
def test_all_servers_serve_again_when_they_are_needed(
    stage: object, change: dict[str, object], result: str
) -> None:
    world = stage()  # type: ignore[operator]
    for name, value in change.items():
        setattr(world, name, value)

    world.tick(170)
    world.frozen = set()
    world.tick(30)

    assert len(world.running) == 4, world.state.note
    assert carrying(world) == {"vllm0", "vllm1", "vllm2", "vllm3"}
    assert not world.state.fleet.spared
    assert world.state.saving.returned_at is not None
    assert not {effect.kind for effect in world.performed} & {"retire", "warm_up"}
    assert world.state.outcomes[-1].result == result
    assert not world.state.suggestions.open, "not again on the same day"


def test_the_load_that_returns_is_seen_within_a_minute() -> None:
    world = saved()
    world.rate = LIMIT + 1
    world.tick(62)

    assert world.state.phase in {Phase.RESTORING, Phase.OBSERVING}
    assert "the load returned" in world.state.saving.why


def test_requests_that_came_count_before_they_have_ended() -> None:
    many = {f"vllm{number}": 100 for number in range(4)}
    world = saved(open_at=many).tick(20)

    for second in range(1, 16):  # as many end as before, and each second ten more come
        world.open_at = dict.fromkeys(many, 100 + 5 * second)
        world.tick()

    assert not world.state.fleet.spared
    assert "requests came in 10 s, and 9/s is the limit" in world.state.saving.why


def test_far_more_open_requests_than_under_the_peak_end_a_saving() -> None:
    world = saved().tick(20)

    for second in range(1, 100):  # their work grows, and not their rate
        world.open_at = dict.fromkeys(carrying(world), 6 + 0.5 * second)
        world.tick()
        if world.state.phase is Phase.RESTORING:
            break

    assert "requests are open, under the load of the peak at most 12 were" in world.state.saving.why


def test_a_load_that_varies_is_not_written_each_second() -> None:
    world = saved(open_at={f"vllm{number}": 6 for number in range(4)}).tick(20)
    before = state_without_counts(world.state)

    world.open_at = dict.fromkeys(world.open_at, 7)
    world.tick()

    assert state_without_counts(world.state) == before


def test_stopped_servers_start_all_at_once() -> None:
    world = saved()
    world.rate = LIMIT + 1
    world.tick(70)

    acts = [effect for effect in world.performed if isinstance(effect, fx.Launch | fx.Route)]
    first = next(at for at, effect in enumerate(acts) if isinstance(effect, fx.Launch))
    both = acts[first : first + 2]
    assert {effect.server.name for effect in both if isinstance(effect, fx.Launch)} == {"vllm2", "vllm3"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_start_without_end_holds_no_other_server_up(restarted: bool) -> None:
    world = saved()
    world.rate, world.stuck = LIMIT + 1, {"vllm2", "vllm3"} if restarted else {"vllm2"}
    world.until("restoring", 70)
    if restarted:
        world.stuck = {"vllm2"}
        world.start()
    world.tick(5)

    assert world.state.phase is Phase.RESTORING
    assert carrying(world) == {"vllm0", "vllm1", "vllm3"}
    world.stuck = set()
    world.start().until("observing", 10)
    assert carrying(world) == {"vllm0", "vllm1", "vllm2", "vllm3"}


def test_a_server_with_an_open_request_is_not_stopped() -> None:
    world = on_trial(open=1)
    world.tick(PASSED_S + 60)
    assert len(world.running) == 4

    world.open = 0
    world.until("observing", 60)

    assert len(world.running) == 2


def test_replicas_end_at_the_begin_of_the_trial_and_come_back_together() -> None:
    world = SavingWorld.servers(1, "save", replicas=4)
    world.start().until("proposed").approve().tick(3)
    assert world.replicas() == {"vllm0": 2}
    world.until("observing", PASSED_S)
    assert world.replicas() == {"vllm0": 2}

    world.rate = LIMIT + 1  # type: ignore[attr-defined]
    world.tick(70)

    assert world.replicas() == {"vllm0": 4}
    assert world.state.phase is Phase.OBSERVING
    assert world.state.outcomes[-1].why.endswith("requests/s, the limit of 2 servers")


@pytest.mark.parametrize("stage", [on_trial, saved])
def test_an_abort_and_the_exit_of_a_server_end_a_saving(stage: object) -> None:
    aborted, lost = stage(), stage()  # type: ignore[operator]
    aborted.feed(e.Aborted(at=aborted.at, actor="alice", reason="a launch"))
    lost.running.pop("vllm1")
    lost.feed(e.ServerLost(at=lost.at, server="vllm1", why="exited with 137"))

    for world in (aborted, lost):
        world.tick(10)
        assert carrying(world) >= {"vllm0", "vllm2", "vllm3"}
        assert not world.state.fleet.spared
    assert aborted.state.outcomes[-1].result == "aborted"


@pytest.mark.parametrize("second", [0, 1, 30, 58, *range(60, 72), 90])
def test_a_restart_at_any_second_goes_on_or_ends_with_all_servers(second: int) -> None:
    world = on_trial()
    world.tick(second)

    world.start().tick(150)

    assert world.state.phase is Phase.OBSERVING
    assert len(world.running) == (2 if world.state.fleet.spared else 4)
    assert carrying(world) == set(world.running)


def test_a_restart_keeps_a_saving_and_a_third_party_that_starts_a_server_ends_it() -> None:
    world = saved()
    world.start().tick(30)
    assert len(world.running) == 2

    world.running["vllm3"] = world.stopped.pop("vllm3")
    world.start().tick(30)

    assert carrying(world) == {"vllm0", "vllm1", "vllm2", "vllm3"}


@pytest.mark.parametrize("kind", ["stop", "route", "drain", "launch"])
def test_a_failed_effect_loses_no_server(kind: str) -> None:
    world = on_trial()
    world.tick(50)
    world.refuses.add(kind)
    world.tick(60)
    world.rate = 20
    world.tick(60)
    world.refuses.clear()
    world.tick(120)

    assert len(world.running) == 4
    assert carrying(world) == {"vllm0", "vllm1", "vllm2", "vllm3"}


def test_no_other_change_begins_while_servers_are_spared() -> None:
    world = saved()
    asked = e.ChangeAsked(at=world.at, actor="bob", to={"max_num_seqs": 8}, reason="")
    world.feed(asked)
    assert "is spared: other changes wait" in world.state.note

    world.feed(replace(asked, to={SERVERS: 1}))
    assert "comes from [targets.cost] save alone" in world.state.note


def test_a_saving_that_was_late_is_not_tried_again_with_as_few_servers() -> None:
    world = on_trial(late=4)
    world.tick(120)
    assert world.state.outcomes[-1].result == "rolled_back"
    world.late = 0
    world.at += timedelta(days=1)

    world.until("proposed")

    assert world.state.suggestions.open[0].proposal.to == {SERVERS: 3}


def test_the_journal_has_the_acts_and_reads_them_back() -> None:
    world, actions, states = on_trial(), [], TypeAdapter(State)
    before = State(target="chat")
    for state in world.states:
        event = e.Observed(at=world.at)
        actions.append(build_entry(before, state, event, ()).action)
        before = state
    assert {"suggestion.made", "suggestion.approved"} <= set(actions)
    assert states.validate_json(states.dump_json(world.state)) == world.state

    other = saved()
    other.rate = 20
    before = other.state
    while other.state.phase is not Phase.RESTORING:
        before = other.state
        other.tick()
    entry = build_entry(before, other.state, e.Observed(at=other.at), ())
    assert entry.action == "saving.ended"
    assert entry.op_id == other.state.saving.id
    assert "the load returned" in entry.why


def test_the_preflight_of_an_engine_that_cannot_refuses_it() -> None:
    world = four()
    world.preflight = PreflightResult(problem="vllm3 is a process", lasting=True)
    world.start().tick(30)

    assert world.state.outcomes[-1].result == "refused"
    assert len(world.running) == 4
