"""A predicted number and how certain it is."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """`value` for the load as recorded and the most likely law; 80 % of the draws lie from `low` to `high`,
    and so does the value."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Band":
        return Band(value=self.value * factor, low=self.low * factor, high=self.high * factor)


def draws_quantile(values: Sequence[float], share: float) -> float:
    """What `share` of further draws lie below: the k-th smallest of n is at k / (n + 1).

    With fewer than nine draws the ends of 80 % are the smallest and the largest.
    """
    place = min(max((len(values) + 1) * share - 1, 0.0), len(values) - 1.0)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
