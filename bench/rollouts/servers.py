"""A vLLM server in virtual time: scheduler, step times and faults of the simulator, and proxy records."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from random import Random

from flettner.agent.domain.reading import EngineSample, Request, RequestOutcome
from flettner.simulator import scheduler as sim
from flettner.simulator.faults import Faults
from flettner.simulator.hardware import Hardware
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.scheduler import ScheduledStep, Scheduler, SchedulerLimits
from flettner.simulator.step_time import StepTime

BLOCKS = 4000  # of 16 tokens
JITTER = 0.05  # sigma of the lognormal noise on step times
STALLED_AFTER_S = 60.0  # as the sensor's default
PATIENCE_S = 60.0  # of a client

Pauses = Iterator[tuple[float, float]]
"""(start, end) in seconds without a completed step."""


def pauses(random: Random, *, every_s: float, least_s: float, most_s: float) -> Pauses:
    """Random stalls of random length, as by garbage collection or a noisy neighbour."""
    at_s = 0.0
    while True:
        at_s += random.expovariate(1 / every_s)
        ends_s = at_s + random.uniform(least_s, most_s)
        yield at_s, ends_s
        at_s = ends_s


@dataclass(slots=True)
class _Open:
    """A request in flight, and its future record of the proxy."""

    cut_after: float = inf  # tokens
    counted: bool = False  # as stalled


@dataclass(slots=True)
class _Counters:
    prompt: int = 0
    generated: int = 0
    queries: int = 0
    hits: int = 0


@dataclass(slots=True, kw_only=True)
class SimServer:
    """Advance to a time, add requests, fetch finished ones. Times in seconds."""

    name: str
    hardware: Hardware
    random: Random
    faults: Faults = field(default_factory=Faults)
    slowly: float = 1.0  # factor on all step times
    pauses: Pauses = field(default_factory=lambda: iter(()))
    now_s: float = 0.0
    seqs: int = 64
    errors: float = 0.002  # share of failed requests at any server
    used_s: float | None = None  # time of the first request
    harmed_s: float | None = None  # time of the first request affected by a fault
    _scheduler: Scheduler = field(init=False)
    _law: StepTime = field(init=False)
    _step: ScheduledStep | None = field(default=None, init=False)
    _ends_s: float = field(default=0.0, init=False)
    _pause: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _open: dict[sim.SimulatedRequest, _Open] = field(default_factory=dict, init=False)
    _ended: list[Request] = field(default_factory=list, init=False)
    _now: _Counters = field(default_factory=_Counters, init=False)
    _told: _Counters | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._scheduler = Scheduler(SchedulerLimits(max_num_seqs=self.seqs), KvCache(BLOCKS))
        self._law = StepTime(hardware=self.hardware)

    @property
    def open(self) -> int:
        return len(self._open)

    def ask(self, request: sim.SimulatedRequest, *, errors: float = 0.0) -> None:
        """`errors`: the current share of failed requests at all servers."""
        self.advance(request.arrived_at)
        self.used_s = request.arrived_at if self.used_s is None else self.used_s
        broken, aborted, cut = (
            self.random.random() < share
            for share in (self.faults.errors, self.faults.abort, self.faults.truncate)
        )
        if broken or aborted or cut:
            self._harm(request.arrived_at)
        if broken or self.random.random() < max(self.errors, errors):
            self._end(request, "failed", status=500, at_s=request.arrived_at + 0.01)
        elif aborted:
            self._end(request, "aborted", at_s=request.arrived_at + 0.01)
        else:
            self._open[request] = _Open(cut_after=request.wanted // 2 if cut else inf)
            self._scheduler.add(request)

    def advance(self, until_s: float) -> None:
        """Run all steps that end by then."""
        while True:
            if self._step is None:
                self._step = self._scheduler.plan()
                if self._step is None:
                    self.now_s = until_s
                    return
                self._ends_s = self._end_of(self._step)
            if self._ends_s > until_s:
                return
            self.now_s, step, self._step = self._ends_s, self._step, None
            self._deliver(step)

    def fetch(self, at_s: float) -> tuple[Request, ...]:
        """Return the records of the proxy since the last call; clients abandon requests after PATIENCE_S."""
        for request, known in list(self._open.items()):
            age_s = at_s - request.arrived_at
            if request.first_at is None and age_s >= STALLED_AFTER_S and not known.counted:
                known.counted = True
                self._end(request, "stalled", at_s=at_s)
            if age_s >= PATIENCE_S:
                self._leave(request)
                self._end(request, "gave_up", at_s=at_s, stalled=known.counted)
        ended, self._ended = tuple(self._ended), []
        return ended

    def forget_scrapes(self) -> None:
        """Forget earlier scrapes, so that the next scrape is a first one."""
        self._told = None

    def scrape(self, at: datetime) -> EngineSample:
        before, now = self._told, replace(self._now)
        now.queries, now.hits = self._scheduler.prefix_queries, self._scheduler.prefix_hits
        self._told = now
        new = before or now
        return EngineSample(
            at=at,
            server=self.name,
            interval_s=0.0 if before is None else 1.0,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_usage=self._scheduler.cache.used_share,
            prompt_tokens=now.prompt - new.prompt,
            generation_tokens=now.generated - new.generated,
            prefix_queries=now.queries - new.queries,
            prefix_hits=now.hits - new.hits,
        )

    def _end_of(self, step: ScheduledStep) -> float:
        began_s = self.now_s if self.used_s is None else self.used_s
        noise = self.random.lognormvariate(0.0, JITTER)
        pace = self.faults.pace(step.work, self.now_s - began_s)
        ends_s = self.now_s + self._law.seconds(step.work) * pace * noise * self.slowly
        while self._pause[1] <= self.now_s:
            self._pause = next(self.pauses, (inf, inf))
        if self._pause[0] < ends_s:
            ends_s += self._pause[1] - max(self._pause[0], self.now_s)
        late_s = began_s + self.faults.ends_s(ends_s - began_s)
        if pace > 1 or late_s > ends_s + 1e-6:
            self._harm(self.now_s)
        return late_s

    def _harm(self, at_s: float) -> None:
        self.harmed_s = at_s if self.harmed_s is None else self.harmed_s

    def _deliver(self, step: ScheduledStep) -> None:
        for request in self._scheduler.finish(step):
            known = self._open.get(request)
            if known is None:
                continue
            self._now.generated += 1
            if request.first_at is None:
                request.first_at = self.now_s
                self._now.prompt += request.prompt
            if request.produced > known.cut_after:
                self._leave(request)
                self._end(request, "truncated", at_s=self.now_s, stalled=known.counted)
            elif request.ended:
                del self._open[request]
                self._end(request, "ok", at_s=self.now_s, stalled=known.counted)

    def _leave(self, request: sim.SimulatedRequest) -> None:
        del self._open[request]
        self._scheduler.abort(request)

    def _end(
        self,
        request: sim.SimulatedRequest,
        outcome: RequestOutcome,
        *,
        at_s: float,
        status: int = 200,
        stalled: bool = False,
    ) -> None:
        first_s = None if request.first_at is None else request.first_at - request.arrived_at
        self._ended.append(
            Request(
                server=self.name,
                outcome=outcome,
                status=status,
                duration_s=at_s - request.arrived_at,
                ttft_s=first_s,
                tokens=request.produced or None,
                stalled=stalled,
            )
        )
