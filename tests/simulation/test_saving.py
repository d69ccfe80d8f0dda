"""Fewer servers: faults at every call of the stop, and crashes in the trial, lose no server or request."""

import pytest

from tests.simulation.history import HistoryResult, play
from tests.simulation.scenario import REPLIES, Act, Scenario

ENOUGH, TOO_FEW = 1, 2  # seeds: of servers that carry the load, and that do not


def saved(*acts: Act, seed: int = ENOUGH) -> HistoryResult:
    return play(Scenario(seed=seed, servers=3, strategy="save", acts=acts))


def actions(result: HistoryResult) -> str:
    return "\n".join(result.log)


def test_half_of_the_servers_stop_where_the_others_carry_the_load() -> None:
    result = saved()

    assert not result.violations
    assert "server.stopped" in actions(result)


def test_all_of_them_serve_again_where_they_do_not() -> None:
    result = saved(seed=TOO_FEW)

    assert not result.violations
    assert "saving.ended" in actions(result)
    assert "the load returned" in actions(result)


@pytest.mark.parametrize("kind", ["stop", "drain", "route"])
@pytest.mark.parametrize("how", REPLIES)
def test_a_fault_at_every_point(kind: str, how: str) -> None:
    assert not saved(Act(what=how, on=kind, nth=2 if kind == "route" else 1)).violations


@pytest.mark.parametrize("at_s", [15.0, 40.0, 75.0, 90.0])
@pytest.mark.parametrize("what", ["daemon killed", "old server exits", "old server hangs", "records missing"])
def test_a_fault_at_some_times(what: str, at_s: float) -> None:
    assert not saved(Act(what=what, at_s=at_s)).violations
