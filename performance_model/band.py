"""A predicted number and how certain it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist


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


def draw_evenly(count: int, random: Random) -> list[float]:
    """Errors of standard deviation 1, in random order: the quantiles of a normal distribution, each followed
    by its negative. A dozen independent ones put one end of a band half again as far off as the other."""
    lower = [NormalDist().inv_cdf(place / (count + 1)) for place in range(1, count // 2 + 1)]
    random.shuffle(lower)
    return [*(error for low in lower for error in (low, -low)), *([0.0] * (count % 2))]
