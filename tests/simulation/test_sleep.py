"""A swap in which the old server sleeps: it fails asleep, or the daemon does, at every point."""

import pytest

from tests.simulation.history import HistoryResult, play
from tests.simulation.scenario import ASLEEP, POINTS, Act, Scenario

KINDS = ("stop", "launch", "warm_up", "route", "retire")


def swapped(act: Act, green: str = "failing") -> HistoryResult:
    return play(Scenario(seed=1, strategy="swap", green=green, sleeps=True, acts=(act,)))


@pytest.mark.parametrize("phase", ["launching", "warming", "canary", "rolling_back"])
@pytest.mark.parametrize("what", ASLEEP)
def test_an_old_server_that_fails_asleep_serves_again_after_a_rollback(what: str, phase: str) -> None:
    result = swapped(Act(what=what, on=f"phase {phase}"))

    assert result.violations == [], "\n".join(result.log)
    assert result.fired == {what: 1}
    assert result.outcome == "rolled_back"


@pytest.mark.parametrize("what", ASLEEP)
def test_an_old_server_that_fails_asleep_stops_no_promotion(what: str) -> None:
    result = swapped(Act(what=what, on="phase canary"), green="good")

    assert result.violations == [], "\n".join(result.log)
    assert result.fired == {what: 1}
    assert result.outcome == "promoted"


@pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind in KINDS for how in POINTS[kind]])
def test_a_fault_at_every_point_of_a_swap_with_sleep(kind: str, how: str) -> None:
    result = swapped(Act(what=how, on=kind))

    assert result.violations == [], "\n".join(result.log)
    assert result.fired == {f"{kind}: {how}": 1}
