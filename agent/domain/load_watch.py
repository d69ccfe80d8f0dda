"""How many requests came in the last seconds, before they have ended. Pure.

Requests are recorded when they end, half a minute after they came, and an overloaded server ends no more of
them. Those that came are the ones that ended and those that are open more than before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

WINDOWS_S = (10, 20, 30)  # in which more requests than the limit are looked for
BIN_S = 10  # of the counts whose spread is the burstiness
SURE = 4.0  # standard deviations above the limit: once in 30,000 windows of a load that is just the limit
BINS_AT_LEAST = 6  # that the burstiness is of
UNKNOWN_BURSTS = 4.0  # the variance of counts over their mean, as long as it is not known; 1 is Poisson
OPEN_TIMES = 1.5  # as many requests open as ever under the load of a peak


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWatch:
    """`arrived`: requests of each of the last seconds, the oldest first."""

    open: int | None = None  # requests that run or wait; None: not known
    arrived: tuple[int, ...] = ()
    most_open: float = 0.0  # under the load of a peak, the highest mean of BIN_S
    opened: tuple[int, ...] = ()  # open requests of the last BIN_S
    bin_s: int = 0  # of the present bin
    bins: int = 0
    last_bin: int = 0
    total: int = 0  # of the requests of all bins
    squares: int = 0  # of the differences of consecutive bins: a load that changes slowly is no burst

    def add(self, ended: int, now_open: int | None, *, tested: bool) -> "LoadWatch":
        """Add a second. `tested`: the load was that of a peak, and the servers carried it."""
        if now_open is None or self.open is None:
            return replace(self, open=now_open, arrived=(), opened=(), bin_s=0)
        came = (
            ended + now_open - self.open
        )  # below 0 where a scrape is later than the records: the sum is right
        arrived = (*self.arrived, came)[-max(WINDOWS_S) :]
        opened = (*self.opened, now_open)[-BIN_S:]
        watch = replace(self, open=now_open, arrived=arrived, opened=opened, bin_s=self.bin_s + 1)
        if tested and len(opened) == BIN_S:
            watch = replace(watch, most_open=max(watch.most_open, sum(opened) / BIN_S))
        return watch if watch.bin_s < BIN_S else _end_bin(watch, sum(arrived[-BIN_S:]))

    @property
    def burstiness(self) -> float:
        """The variance of the counts over their mean; at least 1, that of requests that come at random."""
        if self.bins < BINS_AT_LEAST or not self.total:
            return UNKNOWN_BURSTS
        return max(1.0, self.squares / (2 * (self.bins - 1)) / (self.total / self.bins))

    def find_excess(self, limit_rps: float) -> tuple[int, int] | None:
        """The requests and the seconds in which more came than the limit and its bursts explain."""
        for window_s in WINDOWS_S:
            if len(self.arrived) < window_s:
                return None
            count, usual = sum(self.arrived[-window_s:]), limit_rps * window_s
            if count > usual + SURE * sqrt(self.burstiness * usual):
                return count, window_s
        return None

    def find_backlog(self) -> tuple[float, float] | None:
        """The open requests of the last seconds and the most under a peak, if they are far more."""
        if not self.most_open or len(self.opened) < BIN_S:
            return None
        now = sum(self.opened) / BIN_S
        return (now, self.most_open) if now > _far_above(self.most_open, self.burstiness) else None


def _end_bin(watch: LoadWatch, count: int) -> LoadWatch:
    step = count - watch.last_bin if watch.bins else 0
    return replace(
        watch,
        bin_s=0,
        bins=watch.bins + 1,
        last_bin=count,
        total=watch.total + count,
        squares=watch.squares + step * step,
    )


def _far_above(most: float, burstiness: float) -> float:
    return OPEN_TIMES * most + SURE * sqrt(burstiness * most)


def count_open(loads: Sequence[tuple[float, float] | None]) -> int | None:
    """All requests that run or wait; None if those of a server are not known."""
    known = [load for load in loads if load is not None]
    return round(sum(map(sum, known))) if known and len(known) == len(loads) else None
