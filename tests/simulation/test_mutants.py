"""The simulation detects seeded bugs; without them the same histories have no violation."""

import pytest

from tests.simulation.history import play
from tests.simulation.mutants import CAUGHT, MUTANTS, mutated

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_detects_a_seeded_bug(mutant: str) -> None:
    scenario, says = CAUGHT[mutant]

    with mutated(mutant):
        caught = play(scenario).violations
    whole = play(scenario).violations

    assert [violation for violation in caught if violation.startswith(says)], caught
    assert whole == []
