"""Means and quantiles, of values and of histograms."""

import pytest

from flettner.primitives.quantiles import histogram_quantile, mean, quantile


def test_a_mean_needs_values() -> None:
    assert mean(value for value in (1.0, 2.0, 6.0)) == 3.0
    assert mean(()) is None


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.75), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)]
)
def test_a_quantile_lies_between_its_neighbours(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(expected)
    assert quantile([5.0], share) == 5.0


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((10, 0, 0), 0.5, 0.5),
        ((10, 10, 0), 0.75, 2.0),
        ((0, 10, 0), 0.0, 1.0),
        ((0, 10, 0), 1.0, 3.0),
        ((1, 0, 9), 0.5, 3.0),
    ],
)
def test_a_quantile_of_a_histogram_is_interpolated_in_its_bucket(
    counts: tuple[int, ...], share: float, expected: float
) -> None:
    assert histogram_quantile((1.0, 3.0), counts, share) == pytest.approx(expected)
