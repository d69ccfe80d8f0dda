"""Which values the bound of a knob allows, and which one it takes instead of another."""

from math import inf, nan

import pytest

from flettner.agent.domain.model import Bound
from flettner.vllm_facts.values import Value

VALUES: tuple[Value, ...] = (None, True, False, 0, 1, 4, 4.0, 4.5, 8, 9, -1, nan, inf, "1", "auto", "")


@pytest.mark.parametrize(
    ("bound", "allowed"),
    [
        (Bound(), VALUES),
        (Bound(octaves=0.5), VALUES),
        (Bound(min=1), (1, 4, 4.0, 4.5, 8, 9, inf)),
        (Bound(max=8), (0, 1, 4, 4.0, 4.5, 8, -1)),
        (Bound(min=1, max=8), (1, 4, 4.0, 4.5, 8)),
        (Bound(min=4.5, max=4.5), (4.5,)),
        (Bound(allowed=(1, 4)), (1, 4, 4.0)),
        (Bound(allowed=(4.0,)), (4, 4.0)),
        (Bound(allowed=(True,)), (True,)),
        (Bound(allowed=(False, "auto")), (False, "auto")),
        (Bound(allowed=("1", "")), ("1", "")),
        (Bound(allowed=(None, 9)), (None, 9)),
        (Bound(min=2, allowed=(1, 4, "auto", None, True)), (4, 4.0)),
        (Bound(max=4, allowed=(4.5, 1)), (1,)),
    ],
    ids=str,
)
def test_a_bound_allows_exactly_its_values(bound: Bound, allowed: tuple[Value, ...]) -> None:
    values = [repr(value) for value in VALUES if bound.allows(value)]

    assert values == [repr(value) for value in VALUES if repr(value) in map(repr, allowed)]


@pytest.mark.parametrize(
    ("bound", "has_limits"),
    [
        (Bound(), False),
        (Bound(octaves=3), False),
        (Bound(min=0), True),
        (Bound(max=0), True),
        (Bound(allowed=(0,)), True),
    ],
    ids=str,
)
def test_a_bound_without_limits_allows_every_value(bound: Bound, has_limits: bool) -> None:
    assert bound.has_limits is has_limits


@pytest.mark.parametrize(
    ("bound", "number", "clamped"),
    [
        (Bound(), 100, 100),
        (Bound(min=4), 1, 4),
        (Bound(max=64), 100, 64),
        (Bound(min=4, max=64), 4.5, 4.5),
        (Bound(min=4, max=64, allowed=(8,)), 100, 64),
    ],
    ids=str,
)
def test_a_number_is_clamped_to_the_range(bound: Bound, number: float, clamped: float) -> None:
    assert bound.clamp(number) == clamped


LISTED = Bound(allowed=(8, 32, 64, True, "128", None))
CUT = Bound(min=16, max=40, allowed=(8, 32, 64))


@pytest.mark.parametrize(
    ("bound", "number", "now", "nearest"),
    [
        (Bound(), 100, 50, 100),
        (Bound(max=64), 100, 50, 100),
        (LISTED, 32, 8, 32),
        (LISTED, 50, None, 64),
        (LISTED, 100, None, 64),
        (LISTED, 50, 8, 32),
        (LISTED, 50, 80, 64),
        (LISTED, 20, 16, 16),
        (LISTED, 1, None, 8),
        (LISTED, 1, 2, 2),
        (CUT, 64, None, 32),
        (CUT, 64, 16, 32),
        (CUT, 8, None, 32),
        (CUT, 8, 20, 20),
        (Bound(allowed=("auto",)), 8, None, 8),
        (Bound(allowed=("auto",)), 8, 4, 4),
    ],
    ids=str,
)
def test_the_nearest_allowed_number_lies_on_the_way(
    bound: Bound, number: float, now: float | None, nearest: float
) -> None:
    assert bound.nearest(number, now) == nearest


@pytest.mark.parametrize(
    ("octaves", "now", "reach"),
    [
        (1.0, 64, (32, 128)),
        (0.5, 4, (4 / 2**0.5, 4 * 2**0.5)),
        (3.0, 0.5, (0.0625, 4)),
        (1.0, 0, (-inf, inf)),
        (1.0, -1, (-1, -1)),
    ],
)
def test_one_step_reaches_a_multiple_of_the_present_number(
    octaves: float, now: float, reach: tuple[float, float]
) -> None:
    assert Bound(octaves=octaves).reach(now) == reach
