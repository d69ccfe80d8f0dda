"""How much the servers of one setting differ by chance alone, for the judge.

Requests of one server fail together, so a count of them is weaker evidence than as many independent ones: by
the design effect phi, Pearson's dispersion between servers within the same block of time. An incident that
hits all servers alike cancels out. The largest phi over several block lengths is taken.

For servers r in block w with n requests, k of them bad, N and K their sums, and p = bad share of all blocks:

    phi = sum over w, r of (k - n K/N)^2 / n / (p (1 - p)) / sum over w of (servers - 1)

where sum over r of (k - n K/N)^2 / n = sum over r of k^2/n - K^2/N. With too few concurrent
servers, each block and its successor stand for two servers. A load that moves slowly does not raise phi then
(the mean square successive difference, von Neumann 1941):

    phi = mean over pairs w, w+1 of (K/N - K'/N')^2 / (1/N + 1/N') / (p (1 - p))

One server shows few clumps, of about phi bad requests each, so the excess over 1 is raised by its standard
error, sqrt(2 / clumps).

Only a fleet that meets its SLO, or nearly, is counted: where a third of all requests is late for a minute or
longer, the queue makes them late, which says nothing about how servers differ. Shorter pauses count.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, sqrt

from flettner.agent.domain.request_counts import RequestCounts

TICK_S = 15
KEPT_TICKS = 4 * 3600 // TICK_S
LENGTHS = (1, 4, 20, 80)  # ticks of a block: 15 s, 1, 5 and 20 min
LEAST_TICKS = 20  # of all servers; with fewer there is no calibration
LEAST_REQUESTS = 5  # of a server's tick that counts
LEAST_FREEDOM = 5  # degrees of freedom, or pairs; block lengths with fewer are ignored
EDGE = 0.85
ILL, ILL_TICKS = 1 / 3, 4  # a minute in which more than this share of all requests misses the SLO

STREAMS: Mapping[str, Callable[[RequestCounts], tuple[int, int]]] = {
    "errors": lambda arm: (arm.total, arm.errors),
    "stalled": lambda arm: (arm.served, arm.stalled),
    "gave_up": lambda arm: (arm.served + arm.gave_up, arm.gave_up),
    "refused": lambda arm: (arm.asked, arm.refused),
    "ttft": lambda arm: (sum(arm.ttft), arm.over_ttft),
    "itl": lambda arm: (sum(arm.itl), arm.over_itl),
    "e2e": lambda arm: (sum(arm.e2e), arm.over_e2e),
}
"""(requests, bad requests) by stream. For a latency, bad means above the objective."""

Counts = Mapping[str, tuple[int, int]]  # by server
Tick = tuple[float, int, str, int]
"""Bad share, number, server, requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Dispersion of one stream of requests over the last hours.

    A tick is 15 s of one server with at least 5 requests.
    """

    phi: float  # design effect of the requests, at least 1: divides their evidence
    tick_edge: float  # 85th percentile of the bad share of a tick
    tick_share: float  # share of the ticks that lie above it
    tick_phi: float  # design effect of the ticks, at least 1
    tick_requests: float  # mean requests of a tick
    ticks: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A finished block of time. `squares`: the sum of k^2/n over its servers."""

    squares: float
    requests: int
    bad: int
    servers: int
    ticks: Mapping[str, int]  # by server, the ticks that count


@dataclass(slots=True)
class _Blocks:
    """All finished blocks of one length within the kept time, by number."""

    length: int
    ended: dict[int, _Block] = field(default_factory=dict)
    _number: int = -1
    _open: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # requests, bad, ticks; by server
    _ticks: Mapping[str, int] = field(default_factory=dict)  # of the block that ended last

    def take(self, tick: int, counts: Counts) -> None:
        self._number = tick // self.length
        for server, (requests, bad) in counts.items():
            had, had_bad, ticks = self._open.get(server, (0, 0, 0))
            self._open[server] = had + requests, had_bad + bad, ticks + (requests >= LEAST_REQUESTS)

    def end(self, tick: int) -> None:
        """Advance to `tick`: finish the blocks before it and drop those older than the kept time."""
        if self._open and tick // self.length > self._number:
            rows, self._open = self._open, {}
            ticks = {server: ticks for server, (_, _, ticks) in rows.items() if ticks}
            self._ticks = self._ticks if ticks == self._ticks else ticks  # mostly equal: share one mapping
            self.ended[self._number] = _Block(
                squares=sum(bad * bad / requests for requests, bad, _ in rows.values()),
                requests=sum(requests for requests, _, _ in rows.values()),
                bad=sum(bad for _, bad, _ in rows.values()),
                servers=len(rows),
                ticks=self._ticks,
            )
        while self.ended and (first := next(iter(self.ended))) * self.length < tick - KEPT_TICKS:
            del self.ended[first]

    def phi(self) -> float:
        """The design effect of the requests."""
        return _dispersion((n, b.squares, b.bad, b.requests, b.servers) for n, b in self.ended.items())

    def tick_phi(self, above: Iterable[tuple[int, str]]) -> float:
        """The design effect of the ticks; the ticks in `above` (number, server) count as bad."""
        squares, bad = defaultdict[int, float](float), Counter[int]()
        for (number, server), count in Counter((tick // self.length, name) for tick, name in above).items():
            if number in self.ended:
                squares[number] += count * count / self.ended[number].ticks[server]
                bad[number] += count
        return _dispersion(
            (number, squares[number], bad[number], sum(block.ticks.values()), len(block.ticks))
            for number, block in self.ended.items()
            if block.ticks
        )


def _dispersion(blocks: Iterable[tuple[int, float, int, int, int]]) -> float:
    """The formulas above over blocks of (number, sum of k^2/n, K, N, servers), ordered by number.

    1 if there is too little data.
    """
    within = apart = 0.0
    freedom = pairs = all_bad = everything = 0
    last = last_bad = last_of = -1
    for number, squares, bad, of, servers in blocks:
        within += squares - bad * bad / of
        freedom += servers - 1
        if number == last + 1 and last_of > 0:
            apart += (bad / of - last_bad / last_of) ** 2 / (1 / of + 1 / last_of)
            pairs += 1
        all_bad += bad
        everything += of
        last, last_bad, last_of = number, bad, of
    if not 0 < all_bad < everything:
        return 1.0
    variance = all_bad / everything * (1 - all_bad / everything)
    if freedom >= LEAST_FREEDOM:
        return within / variance / freedom
    if pairs < LEAST_FREEDOM:
        return 1.0
    phi = apart / variance / pairs
    return 1.0 + (phi - 1.0) * (1.0 + sqrt(2.0 * phi / all_bad))


@dataclass(slots=True)
class _Stream:
    """One stream: its blocks, and its ticks ordered by their bad share."""

    blocks: tuple[_Blocks, ...] = field(default_factory=lambda: tuple(_Blocks(length) for length in LENGTHS))
    ordered: list[Tick] = field(default_factory=list)
    by_time: deque[Tick] = field(default_factory=deque)  # the same by time
    requests: int = 0  # of all kept ticks

    def take(self, tick: int, counts: Counts) -> None:
        for blocks in self.blocks:
            blocks.take(tick, counts)
        for server, (requests, bad) in counts.items():
            if requests >= LEAST_REQUESTS:
                entry = (bad / requests, tick, server, requests)
                insort(self.ordered, entry)
                self.by_time.append(entry)
                self.requests += requests

    def end(self, tick: int) -> None:
        for blocks in self.blocks:
            blocks.end(tick)
        while self.by_time and self.by_time[0][1] < tick - KEPT_TICKS:
            oldest = self.by_time.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
            self.requests -= oldest[3]

    def calibration(self) -> Calibration | None:
        ticks = len(self.ordered)
        if ticks < LEAST_TICKS:
            return None
        edge = self.ordered[ceil(EDGE * ticks) - 1][0]
        first = bisect_right(self.ordered, edge, key=lambda entry: entry[0])
        above = [(tick, server) for _, tick, server, _ in self.ordered[first:]]
        return Calibration(
            phi=round(max(1.0, *(blocks.phi() for blocks in self.blocks)), 3),
            tick_edge=edge,
            tick_share=round(len(above) / ticks, 4),
            tick_phi=round(max(1.0, *(blocks.tick_phi(above) for blocks in self.blocks)), 3),
            tick_requests=round(self.requests / ticks, 1),
            ticks=ticks,
        )


@dataclass(slots=True)
class CalibrationWindow:
    """Four hours of request counts of servers of one setting, in bounded memory."""

    _streams: dict[str, _Stream] = field(default_factory=lambda: {name: _Stream() for name in STREAMS})
    _tick: int = -1
    _counts: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)  # by stream and server
    _missed: int = 0  # of all servers' requests in the open tick: late, stalled or abandoned
    _of: int = 0
    _suspect: list[tuple[int, Mapping[str, Counts]]] = field(default_factory=list)
    _ill: bool = False  # a minute or more of the last ticks missed the SLO

    def add(self, at: datetime, arms: Mapping[str, RequestCounts]) -> None:
        """Add one second's request counts by server. If the clock was set back, the tick continues."""
        self._end(at)
        for name, counts_of in STREAMS.items():
            counts = self._counts.setdefault(name, {})
            for server, arm in arms.items():
                requests, bad = counts_of(arm)
                had, had_bad = counts.get(server, (0, 0))
                if requests:
                    counts[server] = had + requests, had_bad + bad
        self._missed += sum(max(arm.late + arm.stalled, arm.over_ttft) + arm.gave_up for arm in arms.values())
        self._of += sum(arm.served + arm.gave_up for arm in arms.values())

    def calibration(self, stream: str, at: datetime) -> Calibration | None:
        """The calibration over all finished ticks; None with too little data."""
        self._end(at)
        return self._streams[stream].calibration()

    def calibrations(self, at: datetime) -> dict[str, Calibration]:
        """By stream, without streams with too little data."""
        by_stream = {name: self.calibration(name, at) for name in STREAMS}
        return {name: calibration for name, calibration in by_stream.items() if calibration is not None}

    def _end(self, at: datetime) -> None:
        tick = int(at.timestamp()) // TICK_S
        if tick <= self._tick:
            return
        finished = self._tick, self._counts
        in_trouble = self._ill or bool(self._suspect)  # as before, where few requests ended
        trouble = self._missed > ILL * self._of if self._of >= LEAST_REQUESTS else in_trouble
        self._counts, self._tick, self._missed, self._of = {}, tick, 0, 0
        if self._ill and trouble:
            return
        self._suspect.append(finished)
        if trouble:
            self._ill = len(self._suspect) >= ILL_TICKS
            self._suspect = [] if self._ill else self._suspect
            return
        for number, counts in self._suspect:
            for name, stream in self._streams.items():
                stream.end(number)
                stream.take(number, counts.get(name, {}))
        self._suspect, self._ill = [], False
        for stream in self._streams.values():
            stream.end(tick)
