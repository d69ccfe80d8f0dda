"""Steps of a knob: on the grid, inside the bound, and never zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.model import Bound
from flettner.policies.conformance.readings import bounds
from flettner.policies.shared.step_grid import step_down, step_up


@pytest.mark.parametrize(
    ("bound", "current", "wanted", "limit", "expected"),
    [
        pytest.param(Bound(), 4, 5, 1e9, 8, id="one doubling"),
        pytest.param(Bound(), 4, 30, 1e9, 32, id="as many as it takes"),
        pytest.param(Bound(), 4, 2, 1e9, 8, id="at least one"),
        pytest.param(Bound(), 4, 30, 20, 16, id="the last under the limit"),
        pytest.param(Bound(), 8, 64, 30, 24, id="between two doublings under the limit"),
        pytest.param(Bound(), 4, 30, 7, 6, id="half a doubling"),
        pytest.param(Bound(), 4, 30, 5, None, id="no room"),
        pytest.param(Bound(max=100), 64, 300, 1e9, 100, id="the bound itself"),
        pytest.param(Bound(allowed=(64, 96, 200)), 64, 300, 1e9, 200, id="a listed value"),
        pytest.param(Bound(allowed=(64,)), 64, 300, 1e9, None, id="no listed value"),
        pytest.param(Bound(max=32), 64, 300, 1e9, None, id="already above the bound"),
    ],
)
def test_steps_up(bound: Bound, current: int, wanted: int, limit: float, expected: int | None) -> None:
    assert step_up(bound, current=current, wanted=wanted, limit=limit) == expected


@pytest.mark.parametrize(
    ("bound", "current", "at_most", "expected"),
    [
        pytest.param(Bound(), 128, 96, 96, id="on the grid"),
        pytest.param(Bound(), 100, 75, 64, id="to the grid"),
        pytest.param(Bound(), 2, 1.5, 1, id="down to one"),
        pytest.param(Bound(), 1, 0.75, None, id="not to none"),
        pytest.param(Bound(min=100), 128, 96, 100, id="as far as the bound"),
        pytest.param(Bound(min=128), 128, 96, None, id="at the bound"),
        pytest.param(Bound(max=64), 128, 96, 64, id="back under the bound"),
        pytest.param(Bound(allowed=(10, 120)), 128, 96, 10, id="a listed value"),
    ],
)
def test_steps_down(bound: Bound, current: int, at_most: float, expected: int | None) -> None:
    assert step_down(bound, current=current, at_most=at_most) == expected


@given(bound=bounds(), current=st.integers(1, 4096), wanted=st.integers(1, 9999), data=st.data())
def test_step_up_increases_within_bound_and_limit(
    bound: Bound, current: int, wanted: int, data: st.DataObject
) -> None:
    limit = data.draw(st.floats(1, 20_000))

    value = step_up(bound, current=current, wanted=wanted, limit=limit)

    assert value is None or (current < value <= limit and bound.allows(value))


@given(bound=bounds(), current=st.integers(1, 4096), least=st.integers(1, 512))
def test_step_down_decreases_within_the_bound(bound: Bound, current: int, least: int) -> None:
    value = step_down(bound, current=current, at_most=0.75 * current, least=least)

    assert value is None or (least <= value < current and bound.allows(value))
