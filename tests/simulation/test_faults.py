"""Hypothesis draws operator actions, faults and waits in any order over the same world."""

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.clock import in_virtual_time
from tests.simulation.history import History
from tests.simulation.scenario import ASLEEP, FLEETS, GREENS, POINTS, TIMED, WORDS, Act, Scenario
from tests.support.sampling import examples

FAULTS = [(kind, how) for kind, hows in POINTS.items() for how in hows]
ACTIONS = [*TIMED, *ASLEEP, *(f"operator {word}" for word in WORDS)]


class FaultSchedule(RuleBasedStateMachine):
    """One example is one history."""

    history: History | None = None

    @initialize(
        fleet=st.sampled_from(FLEETS),
        green=st.sampled_from(GREENS),
        ours=st.booleans(),
        exam=st.booleans(),
        sleeps=st.booleans(),
    )
    def begin(self, fleet: tuple[int, str], green: str, ours: bool, exam: bool, sleeps: bool) -> None:
        servers, strategy = fleet
        scenario = Scenario(
            seed=1,
            servers=servers,
            strategy=strategy,  # type: ignore[arg-type]
            green=green,
            ours=ours,
            exam=exam,
            sleeps=sleeps,
        )
        self.history = History(scenario=scenario)
        asyncio.set_event_loop(self.history.loop)
        self.history.begin()
        self.wait(2.0)  # until a daemon has observed the servers

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 12.0]))
    def wait(self, seconds: float) -> None:
        assert self.history is not None
        self.history.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(what=st.sampled_from(ACTIONS), lasts_s=st.sampled_from([1.0, 5.0, 20.0]))
    def action(self, what: str, lasts_s: float) -> None:
        assert self.history is not None
        self.history.add_act(Act(what=what, lasts_s=lasts_s))

    @rule(fault=st.sampled_from(FAULTS), nth=st.integers(1, 3))
    def fault(self, fault: tuple[str, str], nth: int) -> None:
        assert self.history is not None
        self.history.add_act(Act(what=fault[1], on=fault[0], nth=nth))

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.history is not None:
            assert self.history.observer.violations == []

    def teardown(self) -> None:
        self.end()

    def end(self) -> None:
        if self.history is not None:
            in_virtual_time(self.history.loop, self.history.finish())
            assert self.history.observer.violations == []


TestFaultSchedule = pytest.mark.timeout(900)(FaultSchedule.TestCase)
TestFaultSchedule.settings = settings(
    max_examples=examples(60), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
