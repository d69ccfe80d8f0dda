"""Requests of green and of the other servers in ticks of 15 s: total and bad."""

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
"""Requests, bad requests."""
Tick = tuple[Pair, tuple[Pair, ...]]
"""Green, and each blue server."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """A server stalls for `share` of its time, `ticks` at a time; at least `bad` of its requests fail then.

    Between stalls fewer requests fail, so that the mean is the wanted share.
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
    green_stalls: Stalls | None = None  # None: those of blue


def seeded(*about: object) -> Random:
    """Return a deterministic random stream for each purpose."""
    return Random(":".join(map(str, (SEED, *about))))  # noqa: S311 - simulation, not cryptography


def ticks(random: Random, traffic: Traffic, green: Sequence[float], blue: Sequence[float]) -> list[Tick]:
    """Yield one tick for each pair of shares of bad requests."""
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
    """Return ticks of blue alone, before the canary."""
    shares = [usual] * round(hours * 60 * MINUTE)
    return ticks(random, traffic, shares, shares)


def stalled(random: Random, stalls: Stalls | None) -> Iterator[bool]:
    """Yield the state per tick of a Markov chain with the given share and mean length."""
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
    """Poisson traffic, with independent bad requests: bad and good requests are Poisson as well."""
    bad = poisson(random, mean * share)
    return bad + poisson(random, mean * (1 - share)), bad


def poisson(random: Random, mean: float) -> int:
    return bisect_right(_poisson(round(mean, 9)), random.random())


@cache
def _poisson(mean: float) -> tuple[float, ...]:
    """Return P(X <= 0), P(X <= 1), …"""
    if mean <= 0:
        return (1.0,)
    most = int(mean + 12 * mean**0.5 + 20)
    return tuple(accumulate(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(most)))


def quantiles(values: Sequence[float], *shares: float) -> tuple[float, ...]:
    """Return the quantile of all values, infinite ones included; the lower of two neighbours."""
    ordered = sorted(values)
    return tuple(ordered[int(share * (len(ordered) - 1))] for share in shares)


def by_minute(pairs: Sequence[Pair], minutes: int = 1) -> list[Pair]:
    """Sum ticks into minutes."""
    step = MINUTE * minutes
    rows = iter(pairs)
    whole = (list(islice(rows, step)) for _ in range(len(pairs) // step))
    return [(sum(n for n, _ in row), sum(k for _, k in row)) for row in whole]
