"""Requests of green and of the servers beside it, in ticks of 15 s: how many came, how many were bad."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, islice
from math import exp, lgamma, log
from random import Random

TICK_S = 15.0
MINUTE = 4  # ticks
SEED = 20261121

Pair = tuple[int, int]
"""Requests, the bad of them."""
Tick = tuple[Pair, tuple[Pair, ...]]
"""Green's, and each blue server's."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """A server stalls for `share` of its time, `ticks` at a time, and then at least `bad` go wrong.

    Between stalls so many fewer do that the mean stays what was asked for.
    """

    ticks: float
    share: float = 0.05
    bad: float = 0.15

    def between(self, mean: float) -> float:
        return min(max((mean - self.share * self.bad) / (1 - self.share), 1e-5), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    green_rps: float = 2.0
    blue_rps: float = 6.0  # of all its servers
    servers: int = 3
    stalls: Stalls | None = None
    green_stalls: Stalls | None = None  # where green's are others than blue's


def seeded(*about: object) -> Random:
    """Its own stream of numbers for each purpose, the same in every run."""
    return Random(":".join(map(str, (SEED, *about))))  # noqa: S311 - simulation, not cryptography


def ticks(random: Random, traffic: Traffic, green: Sequence[float], blue: Sequence[float]) -> list[Tick]:
    """One tick for each pair of shares of bad requests."""
    ours, theirs = traffic.green_stalls or traffic.stalls, traffic.stalls
    states = [stalled(random, ours), *(stalled(random, theirs) for _ in range(traffic.servers))]
    mean, each = traffic.green_rps * TICK_S, traffic.blue_rps / traffic.servers * TICK_S
    made = []
    for share, usual in zip(green, blue, strict=True):
        first, *others = (next(state) for state in states)
        share_now = max(ours.bad, share) if first and ours else ours.between(share) if ours else share
        beside = theirs.between(usual) if theirs else usual
        made.append(
            (
                pair(random, mean, share_now),
                tuple(pair(random, each, theirs.bad if ill and theirs else beside) for ill in others),
            )
        )
    return made


def history(random: Random, traffic: Traffic, hours: float = 4.0, usual: float = 0.01) -> list[Tick]:
    """Blue alone, before."""
    shares = [usual] * round(hours * 60 * MINUTE)
    return ticks(random, traffic, shares, shares)


def stalled(random: Random, stalls: Stalls | None) -> Iterator[bool]:
    """Tick by tick; a Markov chain with the stated share and mean length."""
    if stalls is None:
        while True:
            yield False
    end = 1 / stalls.ticks
    begin = end * stalls.share / (1 - stalls.share)
    now = random.random() < stalls.share
    while True:
        now = random.random() >= end if now else random.random() < begin
        yield now


def pair(random: Random, mean: float, share: float) -> Pair:
    """Poisson traffic, each request bad by itself: the bad and the good ones are Poisson too."""
    bad = poisson(random, mean * share)
    return bad + poisson(random, mean * (1 - share)), bad


def poisson(random: Random, mean: float) -> int:
    return bisect_right(_poisson(round(mean, 9)), random.random())


@cache
def _poisson(mean: float) -> tuple[float, ...]:
    """P(X <= 0), P(X <= 1), …"""
    if mean <= 0:
        return (1.0,)
    most = int(mean + 12 * mean**0.5 + 20)
    return tuple(accumulate(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(most)))


def quantiles(values: Sequence[float], *shares: float) -> tuple[float, ...]:
    """Of all values, those that are infinite too; the lower one between two."""
    ordered = sorted(values)
    return tuple(ordered[int(share * (len(ordered) - 1))] for share in shares)


def by_minute(pairs: Sequence[Pair], minutes: int = 1) -> list[Pair]:
    """Sums of whole minutes."""
    step = MINUTE * minutes
    rows = iter(pairs)
    whole = (list(islice(rows, step)) for _ in range(len(pairs) // step))
    return [(sum(n for n, _ in row), sum(k for _, k in row)) for row in whole]
