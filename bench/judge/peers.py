"""Verdicts of other tools on the same traffic, with their documented settings: a tick, or None.

Rules come from source code: Flagger 1.44 (a failed check more than `threshold` times, ever), Argo
Rollouts 1.9 (a measurement fails more than `failureLimit` times, ever), Kayenta 2.46 (`MannWhitneyClassifier`
of NetflixACAJudge-v1.0: confidence 0.98, tolerance 0.25, direction increase; classifier only). Their fixed
limits lie halfway between good and bad, which no operator knows in advance. `z`: the pooled test of two
proportions at p < 0.01, tested at every tick.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import copysign, nan, sqrt
from statistics import NormalDist

from bench.judge.traffic import MINUTE, Pair, by_minute

CONFIDENCE, TOLERANCE = 0.98, 0.25
LOOKS_MIN = (10, 20, 30, 40, 50, 60)
Z01 = NormalDist().inv_cdf(0.99)


def limit(green: Sequence[Pair], most: float, *, minutes: int, failures: int) -> int | None:
    """Check the last `minutes` at that interval; empty checks fail. Roll back at the last of `failures`."""
    failed = 0
    for number, (of, bad) in enumerate(by_minute(green, minutes), 1):
        failed += bad > most * of or not of
        if failed >= failures:
            return number * minutes * MINUTE
    return None


def flagger(threshold: int) -> Callable[[Sequence[Pair], float], int | None]:
    return lambda green, most: limit(green, most, minutes=1, failures=threshold)


def argo(green: Sequence[Pair], most: float) -> int | None:
    """Look every 5 min with failureLimit 3: roll back at the fourth failure."""
    return limit(green, most, minutes=5, failures=4)


def z_test(green: Sequence[Pair], blue: Sequence[Pair], warm_up: int = MINUTE) -> int | None:
    n = k = m = j = 0
    for number, ((of, bad), (blue_of, blue_bad)) in enumerate(zip(green, blue, strict=True), 1):
        n, k, m, j = n + of, k + bad, m + blue_of, j + blue_bad
        share = (k + j) / max(n + m, 1)
        error = sqrt(max(share * (1 - share) * (1 / max(n, 1) + 1 / max(m, 1)), 1e-12))
        if number > warm_up and (k / max(n, 1) - j / max(m, 1)) / error >= Z01:
            return number
    return None


def kayenta(green: Sequence[Pair], blue: Sequence[Pair]) -> int | None:
    """Compare all shares of bad requests per minute so far, every ten minutes."""
    ours, theirs = _shares(green), _shares(blue)
    for minutes in LOOKS_MIN:
        if minutes <= len(ours) and high(_numbers(ours[:minutes]), _numbers(theirs[:minutes])):
            return minutes * MINUTE
    return None


def _shares(pairs: Sequence[Pair]) -> list[float]:
    return [bad / of if of else nan for of, bad in by_minute(pairs)]


def _numbers(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]  # noqa: PLR0124 - not a number


def high(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether Kayenta classifies the metric of the experiment as High; errors count as not High."""
    if not ours or not theirs or sorted(ours) == sorted(theirs) or len({*ours, *theirs}) == 1:
        return False
    confident = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    try:
        low, estimate = _shift(confident, ours, theirs), _shift(0.0, ours, theirs)
    except ZeroDivisionError:
        return False
    mean, usual = sum(ours) / len(ours), sum(theirs) / len(theirs)
    return low > TOLERANCE * abs(estimate) and (usual <= 0 or mean >= usual)


def _shift(wanted: float, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the difference in location at which the rank statistic is `wanted` standard errors."""
    low, high_ = min(ours) - max(theirs), max(ours) - min(theirs)
    if _rank_z(low, ours, theirs) <= wanted:
        return low
    if _rank_z(high_, ours, theirs) >= wanted:
        return high_
    for _ in range(30):
        middle = 0.5 * (low + high_)
        if _rank_z(middle, ours, theirs) > wanted:
            low = middle
        else:
            high_ = middle
    return 0.5 * (low + high_)


def _rank_z(shift: float, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the Mann-Whitney statistic of `ours` less `shift`, standardised, with continuity and ties."""
    moved = [value - shift for value in ours]
    times = Counter(moved) + Counter(theirs)
    rank, seen = {}, 0
    for value in sorted(times):
        rank[value] = seen + (times[value] + 1) / 2
        seen += times[value]
    n, m = len(ours), len(theirs)
    off = sum(rank[value] for value in moved) - n * (n + 1) / 2 - n * m / 2
    ties = sum(count**3 - count for count in times.values()) / ((n + m) * (n + m - 1))
    sigma = sqrt(n * m / 12 * (n + m + 1 - ties))
    return (off - (copysign(0.5, off) if off else 0.0)) / sigma
