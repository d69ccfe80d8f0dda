"""A vLLM server in virtual time: scheduler, step times and metrics page of the simulator."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import ClassVar

from flettner.agent.domain.reading import EngineSample, Request, RequestOutcome
from flettner.agent.observe.engine_sample import sample
from flettner.flettner_vllm.scheduler import Value
from flettner.performance_model.iteration_log import StepRecord
from flettner.simulator.card import Card
from flettner.simulator.engine import SimulatedEngine
from flettner.simulator.flags import Flags
from flettner.simulator.release import VERSION
from flettner.simulator.scheduler import ScheduledStep, SimulatedRequest
from flettner.simulator.server import build_engine
from flettner.simulator.step_time import StepWork
from flettner.vllm_facts.metrics.page_totals import PageTotals
from flettner.vllm_facts.metrics.totals import PageReader

STALLED_AFTER_S = 60.0  # as the default of the sensor `proxy_requests`
BYTES_PER_TOKEN = 4  # of a request's body
MOST_STEPS = 100_000  # kept: 15 minutes of 9 ms


@dataclass(frozen=True, slots=True)
class Ended:
    """A request as its client saw it. Times in seconds; `gap_s`: mean between tokens."""

    server: str
    arrived_s: float
    ended_s: float
    outcome: RequestOutcome
    ttft_s: float | None = None
    gap_s: float | None = None


@dataclass(slots=True)
class _Open:
    """A request in flight. `probe`: of the warm-up, sent past the proxy."""

    probe: bool = False
    stalled: bool = False  # the proxy has counted it
    cut_after: float = inf  # tokens of the answer, as by a fault of the server


class VirtualServer:
    """Advance to a time, add requests, take the records. All times are seconds of one clock."""

    patience_s: ClassVar[float] = 400.0  # of a client

    def __init__(
        self, name: str, flags: Flags, *, now_s: float, unix_s: float, card: Card | None = None, rank: int = 0
    ) -> None:
        """One engine. `card`: the GPU, where other servers use it too; `rank`: among data-parallel engines.

        Raises StartError if the model does not fit.
        """
        engine = build_engine(SimulatedEngine, flags, lambda: unix_s, rank)
        engine.pace.card, engine.pace.server = card or Card(), f"{name} {rank}" if rank else name
        self.name = name
        self.flags = flags
        self.scheduler, self.metrics = engine.scheduler, engine.metrics
        self._pace = engine.pace
        self._now_s = now_s
        self._used_s: float | None = None
        self._step: ScheduledStep | None = None
        self._ends_s = 0.0
        self._open: dict[SimulatedRequest, _Open] = {}
        self._silent: deque[SimulatedRequest] = deque()  # without a first token for less than STALLED_AFTER_S
        self._records: list[Request] = []
        self._ended: list[Ended] = []
        self._page: tuple[PageTotals, float] | None = None
        self._pages = PageReader()
        self.new_limits: Callable[[], Mapping[str, Value] | None] = lambda: None  # since the last call
        self._began_s = now_s  # of the current step
        self.steps: deque[tuple[float, StepRecord]] = deque(maxlen=MOST_STEPS)  # with the time of their end

    @property
    def open(self) -> int:
        """Number of open requests, of clients and of the warm-up."""
        return len(self._open)

    @property
    def routed(self) -> int:
        """Number of open requests that came through the proxy."""
        return sum(not state.probe for state in self._open.values())

    def ask(self, request: SimulatedRequest, *, probe: bool = False) -> None:
        """Refuse with 400 what the context does not hold, as vLLM does."""
        self.advance(request.arrived_at)
        if request.prompt + request.wanted > self.flags.memory.max_model_len:
            if not probe:
                self._end(request, "refused", at_s=request.arrived_at, status=400)
            return
        self._used_s = request.arrived_at if self._used_s is None else self._used_s
        self._open[request] = _Open(probe=probe)
        if not probe:
            self._silent.append(request)
        self.scheduler.add(request)

    def advance(self, until_s: float) -> None:
        """Run all steps that end by then."""
        while True:
            if self._step is None:
                self._step = self.scheduler.plan()
                if self._step is None:
                    self._pace.card.leave(self._pace.server)
                    self._now_s = max(self._now_s, until_s)
                    return
                self._begin(self._step)
            if self._ends_s > until_s:
                return
            self._now_s, step, self._step = self._ends_s, self._step, None
            self._record_step(step.work, self._now_s - self._began_s)
            self._deliver(step)
            if most := self._count_repeats(step):
                self._repeat(step.work, most, until_s)

    def _count_repeats(self, step: ScheduledStep) -> int:
        """How many steps like this one, of which only a token of each request comes, may run at once."""
        return self.scheduler.repeats(step)

    def _find_end(self, work: StepWork) -> float:
        """When a step that begins now ends."""
        since_s = self._now_s if self._used_s is None else self._used_s
        return self._pace.ends_s(work, self._now_s, since_s=since_s)

    def _repeat(self, work: StepWork, most: int, until_s: float) -> None:
        """Run up to so many steps of decoding at once; one that ends after `until_s` becomes the current."""
        sequences, kv_read, done = work.sequences, work.kv_read, 0
        late_s: float | None = None
        while done < most:
            kv_read += sequences
            again = StepWork(tokens=sequences, sequences=sequences, kv_read=kv_read)
            ends_s = self._find_end(again)
            if ends_s > until_s:
                late_s = ends_s
                break
            self.metrics.observe("inter_token_latency_seconds", ends_s - self._now_s, sequences)
            self._record_step(again, ends_s - self._now_s)
            self._now_s = ends_s
            done += 1
        self.metrics.observe("iteration_tokens_total", sequences, done)
        self.metrics.generation_tokens += sequences * done
        self.scheduler.repeat(done)
        for request in self.scheduler.running:
            request.last_at = self._now_s
        if late_s is not None:
            self._step, self._ends_s, self._began_s = self.scheduler.plan(), late_s, self._now_s

    def _record_step(self, work: StepWork, seconds: float) -> None:
        """Keep the step as vLLM's iteration log would say it."""
        decodes = work.sequences - work.prefills
        self.steps.append(
            (
                self._now_s,
                StepRecord(
                    seconds=round(seconds, 5),
                    prefills=work.prefills,
                    prefill_tokens=work.tokens - decodes - work.drafted,
                    decodes=decodes,
                    decode_tokens=decodes + work.drafted,
                    kv_share=round(self.scheduler.cache.used_share, 3),
                ),
            )
        )

    def apply_limits(self) -> None:
        """Put limits that were set since the last call in force from the next step on."""
        if (values := self.new_limits()) is not None:
            self.scheduler.set_limits(values)

    def take_records(self, at_s: float) -> tuple[Request, ...]:
        """Return the records of the proxy since the last call: ended requests, and newly stalled ones."""
        while self._silent and at_s - self._silent[0].arrived_at >= STALLED_AFTER_S:
            request = self._silent.popleft()
            state = self._open.get(request)
            if state is not None and request.first_at is None:
                state.stalled = True
                self._records.append(self._record(request, "stalled", at_s=at_s, status=0))
        for request, state in list(self._open.items()):
            if at_s - request.arrived_at < self.patience_s:
                break
            if not state.probe:
                self._leave(request, "gave_up", at_s)
        records, self._records = tuple(self._records), []
        return records

    def take_ended(self) -> list[Ended]:
        """Return the requests whose clients have an answer or none any more, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def close(self, at_s: float) -> None:
        """End the process: its open requests are cut."""
        for request, state in list(self._open.items()):
            if not state.probe:
                self._leave(request, "failed" if request.first_at is None else "truncated", at_s)
        self._open = {}
        self._pace.card.leave(self._pace.server)

    def scrape(self, at: datetime, at_s: float) -> EngineSample:
        """Return what the sensor `vllm_metrics` emits for the page."""
        after = self._pages.totals(self.page().encode())
        before, before_s = self._page or (None, at_s)
        self._page = after, at_s
        return sample(before, after, at=at, server=self.name, interval_s=at_s - before_s, version=VERSION)

    def page(self) -> str:
        return self.metrics.text(self.scheduler)

    def forget_scrapes(self) -> None:
        """Make the next scrape a first one, as of a new daemon."""
        self._page = None

    def _begin(self, step: ScheduledStep) -> None:
        for request in step.admitted:
            if request.scheduled_at is None:
                request.scheduled_at = self._now_s
        self._began_s, self._ends_s = self._now_s, self._find_end(step.work)

    def _deliver(self, step: ScheduledStep) -> None:
        metrics, now_s = self.metrics, self._now_s
        since: dict[float, int] = {}  # most tokens follow one of the last step
        tokens = prompts = 0
        for request in self.scheduler.finish(step):
            tokens += request.new_tokens
            if request.first_at is None or request.last_at is None:
                request.first_at = now_s
                prompts += request.prompt - request.cached
                metrics.prefilled(request, now_s)
            else:
                since[request.last_at] = since.get(request.last_at, 0) + 1
            request.last_at = now_s
            if request.produced > self._open[request].cut_after:
                self._leave(request, "truncated", now_s)
            elif request.ended:
                metrics.ended(request, "length")
                self._end(request, "ok", at_s=now_s)
        for last_s, count in since.items():
            metrics.observe("inter_token_latency_seconds", now_s - last_s, count)
        metrics.generation_tokens += tokens
        metrics.observe("iteration_tokens_total", prompts + tokens)

    def _leave(self, request: SimulatedRequest, outcome: RequestOutcome, at_s: float) -> None:
        self.scheduler.abort(request)
        self._end(request, outcome, at_s=at_s)

    def _end(
        self, request: SimulatedRequest, outcome: RequestOutcome, *, at_s: float, status: int = 200
    ) -> None:
        state = self._open.pop(request, _Open())
        if state.probe:
            return
        record = self._record(request, outcome, at_s=at_s, status=status)
        self._records.append(replace(record, stalled=state.stalled))
        first_s, gaps = request.first_at, max(1, request.produced - 1)
        self._ended.append(
            Ended(
                server=self.name,
                arrived_s=request.arrived_at,
                ended_s=at_s,
                outcome=outcome,
                ttft_s=None if first_s is None else first_s - request.arrived_at,
                gap_s=None if first_s is None else (at_s - first_s) / gaps,
            )
        )

    def _record(
        self, request: SimulatedRequest, outcome: RequestOutcome, *, at_s: float, status: int
    ) -> Request:
        first_s = request.first_at
        return Request(
            server=self.name,
            outcome=outcome,
            status=status if outcome != "stalled" else 0,
            duration_s=at_s - request.arrived_at,
            ttft_s=None if first_s is None else first_s - request.arrived_at,
            tokens=request.chunks or None,  # as the proxy counts them
            request_bytes=BYTES_PER_TOKEN * request.prompt,
        )
