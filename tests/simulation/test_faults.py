"""Hypothesis plays fate: any deed, any fault, any wait, in any order, over the same world."""

import asyncio

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.__main__ import quiet
from tests.simulation.clock import in_virtual_time
from tests.simulation.history import History
from tests.simulation.script import FLEETS, GREENS, POINTS, TIMED, WORDS, Act, Script
from tests.support.sampling import examples

FAULTS = [(kind, how) for kind, hows in POINTS.items() for how in hows]
DEEDS = [*TIMED, *(f"operator {word}" for word in WORDS)]


class Fate(RuleBasedStateMachine):
    """One example is one history."""

    history: History | None = None

    @initialize(
        fleet=st.sampled_from(FLEETS), green=st.sampled_from(GREENS), ours=st.booleans(), exam=st.booleans()
    )
    def begin(self, fleet: tuple[int, str], green: str, ours: bool, exam: bool) -> None:
        quiet()
        servers, strategy = fleet
        script = Script(seed=1, servers=servers, strategy=strategy, green=green, ours=ours, exam=exam)  # type: ignore[arg-type]
        self.history = History(script=script)
        asyncio.set_event_loop(self.history.loop)
        self.history.begin()
        self.wait(2.0)  # so that a daemon has seen what it is to watch

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 12.0]))
    def wait(self, seconds: float) -> None:
        assert self.history is not None
        self.history.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(what=st.sampled_from(DEEDS), lasts_s=st.sampled_from([1.0, 5.0, 20.0]))
    def deed(self, what: str, lasts_s: float) -> None:
        assert self.history is not None
        self.history.befalls(Act(what=what, lasts_s=lasts_s))

    @rule(fault=st.sampled_from(FAULTS), nth=st.integers(1, 3))
    def fault(self, fault: tuple[str, str], nth: int) -> None:
        assert self.history is not None
        self.history.befalls(Act(what=fault[1], on=fault[0], nth=nth))

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.history is not None:
            assert self.history.observer.violations == []

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            structlog.reset_defaults()

    def end(self) -> None:
        if self.history is not None:
            in_virtual_time(self.history.loop, self.history.finish())
            assert self.history.observer.violations == []


TestFate = pytest.mark.timeout(900)(Fate.TestCase)
TestFate.settings = settings(
    max_examples=examples(60), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
