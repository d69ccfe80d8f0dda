"""A server with a queue, in steps of a second: requests wait for one of its slots, in the order of arrival.

What one setting leaves waiting, the next one serves. A request keeps the service time that it began with.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp, inf, log
from random import Random

from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts

PATIENCE_S = 30.0  # then a client that waits for its first token leaves
SERVICE_S, SPREAD = 5.0, 0.6  # mean, and of the logarithm
PAUSE_EVERY_S, PAUSE_S = 60.0, (3.0, 8.0)
LIMIT_S = 2.0  # a request that waits for longer misses the SLO

Arrival = tuple[float, float, float]
"""Time, service time in seconds, and a number from 0 to 1 by which it is late without a queue."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the limits of a server come to.

    `slots`: requests that run at a time, in units of what the mean load needs. `late`: share of the requests
    that miss the SLO without waiting.
    """

    slots: float
    late: float = 0.02


@dataclass(slots=True)
class QueueingServer:
    load: float  # requests that run at a time at the mean rate, if none waits
    pauses: Random | None = None  # the server stands still for 3 to 8 s, once a minute on average
    _paused: tuple[float, float] = (-inf, -inf)  # from, to
    _waiting: deque[Arrival] = field(default_factory=deque)
    _running: list[tuple[float, bool]] = field(default_factory=list)  # end, late

    def run_second(self, begin_s: float, arrivals: list[Arrival], setting: Setting) -> RequestCounts:
        """Return the requests that end in the second."""
        if self._is_paused(begin_s):
            self._waiting.extend(arrivals)
            self._running = [(ends_s + 1.0, late) for ends_s, late in self._running]
            return RequestCounts()
        total = late = gave_up = 0
        end_s, slots = begin_s + 1.0, max(1, round(self.load * setting.slots))
        self._start(begin_s, slots, setting.late)
        for arrival in [*arrivals, (end_s, 0.0, 0.0)]:
            while self._running and self._running[0][0] <= arrival[0]:
                ended_s, was_late = heappop(self._running)
                total += 1
                late += was_late
                self._start(ended_s, slots, setting.late)
            if arrival[0] < end_s:
                self._waiting.append(arrival)
                self._start(arrival[0], slots, setting.late)
        while self._waiting and self._waiting[0][0] < end_s - PATIENCE_S:
            self._waiting.popleft()
            gave_up += 1
        return RequestCounts(total=total, late=late, gave_up=gave_up)

    def liveness(self) -> EngineLiveness:
        running = float(len(self._running))
        return EngineLiveness(age_s=0.5, running=running, waiting=float(len(self._waiting)), tokens=running)

    def _is_paused(self, at_s: float) -> bool:
        if self.pauses is None:
            return False
        while at_s >= self._paused[1]:
            begin_s = max(at_s, self._paused[1]) + self.pauses.expovariate(1 / PAUSE_EVERY_S)
            self._paused = begin_s, begin_s + self.pauses.uniform(*PAUSE_S)
        return at_s >= self._paused[0]

    def _start(self, at_s: float, slots: int, share: float) -> None:
        while self._waiting and len(self._running) < slots:
            arrived_s, service_s, lot = self._waiting.popleft()
            heappush(self._running, (at_s + service_s, at_s - arrived_s > LIMIT_S or lot < share))


@dataclass(slots=True)
class Load:
    """Poisson arrivals whose rate changes as `shape` says, around `rps`.

    steady; drift: from a half of it to 1.3 times in an hour; bursts: 2.2 times it for 40 s in 200 s on
    average, 0.7 times between; waves: 1.9 and 0.3 times by turns of 35 s.
    """

    shape: str
    rps: float
    random: Random
    _bursting: bool = False
    _until_s: float = 0.0

    def second(self, begin_s: float) -> list[Arrival]:
        arrivals: list[Arrival] = []
        at_s = begin_s + self._gap_s(1 / self._rate(begin_s))
        while at_s < begin_s + 1.0:
            service_s = SERVICE_S * exp(self.random.gauss(-(SPREAD**2) / 2, SPREAD))
            arrivals.append((at_s, service_s, self.random.random()))
            at_s += self._gap_s(1 / self._rate(begin_s))
        return arrivals

    def _rate(self, at_s: float) -> float:
        if self.shape == "drift":
            return self.rps * (0.5 + 0.8 * max(at_s, 0.0) / 3600)
        if self.shape == "waves":
            return self.rps * (1.9 if int(at_s // 35) % 2 else 0.3)
        if self.shape == "bursts":
            while at_s >= self._until_s:
                self._bursting = not self._bursting
                self._until_s = max(at_s, self._until_s) + self._gap_s(40 if self._bursting else 160)
            return self.rps * (2.2 if self._bursting else 0.7)
        return self.rps

    def _gap_s(self, mean_s: float) -> float:
        return -mean_s * log(1 - self.random.random())
