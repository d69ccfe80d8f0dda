"""A wall clock that is set during a rollout changes no verdict and no deadline; a restart does not either."""

from dataclasses import replace

import pytest

from tests.simulation.history import HistoryResult, play
from tests.simulation.scenario import Act, Scenario

pytestmark = pytest.mark.smoke
SURGE, SWAP = Scenario(seed=3), Scenario(seed=3, strategy="swap")
REPLACE, FAILING = Scenario(seed=3, servers=2, strategy="replace"), Scenario(seed=3, green="failing")
AT_MOST_S = 3.0  # the proxy gives blue all requests for a second, by the lease

CASES = [
    *((SURGE, phase) for phase in ("launching", "warming", "canary")),
    *((SWAP, phase) for phase in ("draining", "launching", "canary", "promoting")),
    *((REPLACE, phase) for phase in ("launching", "canary", "draining")),
    *((FAILING, phase) for phase in ("rolling_back", "cooldown")),
]


def phases(result: HistoryResult) -> list[tuple[str, float]]:
    """The phases of the first rollout, and when each began, s."""
    began: list[tuple[str, float]] = []
    for line in result.log:
        if "[" in line and "rolled_back" not in line:
            phase = line.split("[")[1].split("]")[0]
            if not began or began[-1][0] != phase:
                began.append((phase, float(line[:7])))
    first = next(at for at, (phase, _) in enumerate(began) if phase in {"launching", "draining"})
    end = next(at for at, (phase, _) in enumerate(began) if at > first and phase == "observing")
    return began[: end + 1]


@pytest.mark.parametrize("what", ["clock forward", "clock back"])
@pytest.mark.parametrize(("scenario", "phase"), CASES)
def test_a_clock_that_is_set_moves_no_phase(scenario: Scenario, phase: str, what: str) -> None:
    quiet = play(scenario)

    jumped = play(replace(scenario, acts=(Act(what=what, on=f"phase {phase}"),)))

    assert jumped.violations == [], "\n".join(jumped.log)
    assert jumped.fired == {what: 1}
    assert jumped.outcome == quiet.outcome
    assert [name for name, _ in phases(jumped)] == [name for name, _ in phases(quiet)]
    assert [at_s for _, at_s in phases(jumped)] == pytest.approx(
        [at_s for _, at_s in phases(quiet)], abs=AT_MOST_S
    )


def test_a_daemon_goes_on_from_its_last_entry_after_the_clock_was_set_back() -> None:
    killed = Act(what="daemon killed", at_s=20.0)
    quiet = play(replace(SURGE, acts=(killed,)))

    jumped = play(replace(SURGE, acts=(Act(what="clock back", at_s=18.0), killed)))

    assert jumped.violations == [], "\n".join(jumped.log)
    assert jumped.starts == quiet.starts
    assert jumped.outcome == quiet.outcome
    assert [at_s for _, at_s in phases(jumped)] == pytest.approx(
        [at_s for _, at_s in phases(quiet)], abs=AT_MOST_S
    )
