"""Every kind of effect has fault points, and a history reaches each of them."""

from typing import get_args

import pytest

from flettner.agent.domain.effects import Effect
from tests.simulation.history import play
from tests.simulation.scenario import POINTS, Act, Scenario

pytestmark = pytest.mark.timeout(600)  # next to other streams of tests
MUST = {"crash before", "crash after", "reply lost", "refused", "late", "twice"}


def test_every_effect_has_fault_points_before_after_and_in_its_reply() -> None:
    kinds = {kind.__dataclass_fields__["kind"].default for kind in get_args(Effect)}

    assert set(POINTS) == kinds
    assert all(set(hows) >= MUST for hows in POINTS.values())


@pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind, hows in POINTS.items() for how in hows])
def test_survives_a_fault_at_every_point(kind: str, how: str) -> None:
    scenario = Scenario(
        seed=1,
        strategy="hot" if kind.endswith("_knobs") else "swap" if kind == "stop" else "surge",
        green="failing" if kind in {"drain", "retire"} else "good",
        exam=kind == "examine",
        acts=(Act(what=how, on=kind),),
    )

    result = play(scenario)

    assert result.violations == [], "\n".join(result.log)
    assert result.fired == {f"{kind}: {how}": 1}
