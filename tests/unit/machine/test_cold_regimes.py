"""Settings that follow the load where no limit is hot: each switch is a rollout, under the first approval."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from flettner.agent.audit.entries import is_switch
from flettner.agent.domain import events as e
from flettner.agent.domain.model import PreflightResult, Server
from flettner.agent.domain.regimes import COLD_LASTS_S, MOST_COLD_SWITCHES
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary, Regimes
from flettner.agent.domain.state import Phase
from flettner.agent.machine.step import Machine
from tests.support.machine_stories import World, counts_of
from tests.unit.machine.test_hot_trial import CAP, HOT
from tests.unit.machine.test_regimes import BETWEEN, LONG, PLAN, SHORT, Switch, machine

COLD = replace(PLAN, cold=True)


def cold_machine() -> Machine:
    return machine(strategy="surge", policies=(("regimes", Switch(COLD)),))


@dataclass
class ColdLoad(World):
    """Requests are in time with the cap for their prompts. `broken`: of ten, with the larger cap."""

    machine: Machine = field(default_factory=cold_machine)
    running: dict[str, Server] = field(default_factory=lambda: {HOT.name: HOT})
    prompt_tokens: float | None = SHORT
    broken: int = 0

    def arm(self, name: str) -> RequestCounts:
        right = 16 if self.prompt_tokens == LONG else 4
        cap = self.running[name].setting[CAP]
        late = 4 if cap != right and self.prompt_tokens != BETWEEN else 0
        failed = self.broken if cap == 16 and self.broken else late
        return counts_of(name, ok=10 - failed, failed=failed)

    @property
    def regimes(self) -> Regimes:
        assert self.state.regimes is not None
        return self.state.regimes

    def cap(self) -> object:
        (server,) = self.state.fleet.running
        return server.setting[CAP]

    def change(self, tokens: float) -> "ColdLoad":
        """The load changes, long enough ago for a switch."""
        self.prompt_tokens = tokens
        self.state = replace(self.state, regimes=replace(self.regimes, other_s=COLD_LASTS_S - 2))
        self.tick(6)
        return self

    def settle(self, limit_s: int = 3000) -> "ColdLoad":
        for _ in range(limit_s):
            self.tick()
            if self.state.phase is Phase.OBSERVING:
                return self
        raise AssertionError(f"{self.state.phase}: {self.state.note}")


def approved(**more: object) -> ColdLoad:
    world = ColdLoad(**more)  # type: ignore[arg-type]
    world.start().until("proposed")
    world.approve()
    return world


def at_night(**more: object) -> ColdLoad:
    world = approved(**more).change(LONG)
    assert isinstance(world.state.rollout, Canary)
    return world.settle()


def test_the_suggestion_says_that_each_switch_starts_servers() -> None:
    world = ColdLoad()
    world.start().until("proposed")
    (suggestion,) = world.state.suggestions.open

    assert suggestion.preflight.strategy == "surge"
    assert (
        "each switch is a rollout of its own, which starts servers with the other values" in suggestion.notes
    )
    assert any("covers each later switch, at most 2 a day" in note for note in suggestion.notes)


def test_no_switch_may_be_an_outage() -> None:
    world = ColdLoad(preflight=PreflightResult(strategy="swap", why="no memory is free", outage_s=40.0))
    world.start().tick(20)

    assert not world.state.suggestions.open
    assert "each switch would be an outage: no memory is free" in world.state.outcomes[-1].why


def test_the_load_of_the_night_starts_a_server_with_its_setting_and_the_day_one_with_its_own() -> None:
    world = at_night()

    assert world.cap() == 16
    assert world.regimes.values == {CAP: 16}
    assert world.regimes.switched == 1
    assert any(is_switch(state) for state in world.states)

    world.tick(120)
    world.change(SHORT).settle()
    assert world.cap() == 4
    assert world.state.switching is not None


def test_the_load_must_last_for_a_quarter_of_an_hour() -> None:
    world = approved()
    world.tick(60)
    world.prompt_tokens = LONG
    world.tick(COLD_LASTS_S - 60)

    assert world.state.phase is Phase.OBSERVING
    assert world.cap() == 4


def test_a_switch_that_is_worse_ends_it_and_the_values_in_force_stay() -> None:
    world = approved(broken=9).change(LONG).settle()
    world.tick(3)

    assert world.state.switching is None
    assert "failed" in world.regimes.ending
    assert "the servers would have to start again" in world.regimes.ending
    assert world.cap() == 4


def test_a_third_switch_of_a_day_ends_it() -> None:
    world = at_night()
    world.tick(120)
    world.change(SHORT).settle()
    assert len(world.regimes.switches) == MOST_COLD_SWITCHES
    world.tick(120)
    world.change(LONG)
    world.tick(3)

    assert world.state.switching is None
    assert "the load changed more than 2 times in a day" in world.regimes.ending
    assert world.cap() == 4


def test_the_next_day_it_switches_again() -> None:
    world = at_night()
    world.tick(120)
    world.change(SHORT).settle()
    world.at += timedelta(days=1)
    world.tick(10)
    world.change(LONG).settle()

    assert world.cap() == 16
    assert world.state.switching is not None


@pytest.mark.parametrize("of_approval", [False, True])
def test_an_abort_of_a_switch_rolls_it_back_and_ends_the_approval(*, of_approval: bool) -> None:
    world = approved().change(LONG)
    assert world.state.rollout is not None
    named = world.regimes.id if of_approval else world.state.rollout.id
    world.feed(e.Aborted(at=world.at, actor="alice", reason="", rollout=named))
    world.settle()
    world.tick(3)

    assert world.state.switching is None
    assert world.cap() == 4


@pytest.mark.parametrize("second", [1, 20, 60, 200])
def test_a_restart_of_the_daemon_in_a_switch_loses_no_server(second: int) -> None:
    world = approved().change(LONG)
    world.tick(second)
    world.start()
    world.settle()
    world.tick(3)

    assert len(world.state.fleet.running) == 1
    assert set(world.weights) == {server.name for server in world.state.fleet.running}


def test_an_abort_between_switches_ends_it_and_starts_nothing() -> None:
    world = at_night()
    world.tick(120)
    world.feed(e.Aborted(at=world.at, actor="alice", reason="", rollout=world.regimes.id))
    world.change(SHORT)

    assert world.state.switching is None
    assert world.cap() == 16
