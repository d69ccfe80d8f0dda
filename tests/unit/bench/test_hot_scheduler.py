"""What the comparison of the schedulers says of its goal."""

import pytest

from bench.hot_scheduler.__main__ import band, compare_with_goal


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.99, 1.0, 0.995], "goal: at most +1 %, met"),
        ([1.05, 1.06, 1.055], "goal: at most +1 %, missed"),
        ([0.9, 1.1, 1.0], "goal: at most +1 %, open"),
    ],
)
def test_a_goal_is_met_only_if_the_whole_band_is_below_it(ratios: list[float], verdict: str) -> None:
    assert verdict in compare_with_goal(band(ratios))
