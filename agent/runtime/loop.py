"""The loop of one target, the only place that waits: take an event, step, record it, perform the effects."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, retry_if_result, wait_fixed

from flettner.agent.audit.backlog import Backlog, only_rolls_back
from flettner.agent.audit.entries import build_entry
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import JournalEntry
from flettner.agent.domain.effects import Effect
from flettner.agent.domain.errors import ActError, JournalError
from flettner.agent.domain.events import AgentStarted, EffectFailed, Event, Observed, Reconfigured
from flettner.agent.domain.headroom import Headroom, HourPeak
from flettner.agent.domain.model import Approvers, Mode, Server, Slo
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.ports import Engine, Now, Sensor, Traffic
from flettner.agent.domain.reading import EngineSample, Reading, Sample, SourceState
from flettner.agent.domain.regimes import RegimeAdvice
from flettner.agent.domain.state import State
from flettner.agent.machine.order import find_ends
from flettner.agent.machine.step import Machine, numbered_effects, state_without_counts, state_without_recent
from flettner.agent.machine.traffic import select_usual
from flettner.agent.machine.transitions import WITHOUT_ROLLOUT, Rules, find_gpu_model
from flettner.agent.observe.aggregator import TRAFFIC, Aggregator
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.observe.spending import WINDOW_MINUTES, Spending, measure_spending
from flettner.agent.prediction.capacity import CapacityAnswer
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.what_if import WhatIf
from flettner.agent.retrying import ReasonLog, retry
from flettner.agent.runtime.command_check import CommandCheck
from flettner.agent.runtime.companion import Companion
from flettner.agent.runtime.effect_runner import EffectRunner
from flettner.agent.runtime.headroom_note import HeadroomNote
from flettner.agent.runtime.learner import Learner
from flettner.agent.runtime.model_search import ModelSearch
from flettner.agent.runtime.process_clock import each_second
from flettner.agent.runtime.regime_search import RegimeSearch
from flettner.agent.runtime.server_logs import ServerLogs
from flettner.agent.runtime.time_series import HistorySource, TimeSeries
from flettner.agent.telemetry.self_metrics import SelfMetrics
from flettner.performance_model.errors import PredictionInputError
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Setting

RETRY_S = 1.0  # between attempts to write the journal at the start
OBSERVE_EVERY_S = 5.0  # for an adopted server that exited and may return, possibly with other flags
COUNTS_EVERY = timedelta(seconds=10)  # how much of a canary's counts a crash may lose
log = structlog.get_logger()

Inbox = asyncio.Queue[tuple[Event, asyncio.Future[State] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRules:
    """What a reloaded config asks for, until no rollout runs."""

    rules: Rules
    mode: Mode
    approval: Approvers
    actor: str = ""  # who asked for the reload; empty: not known


@dataclass(slots=True, kw_only=True)
class TargetLoop:
    """Passes one target's events to its machine, and the effects to its actuators. `state` is in force.

    The API reads it as a flettner.agent.api.daemon_view.TargetView.
    """

    state: State
    machine: Machine
    journal: Journal
    engine: Engine
    traffic: Traffic
    sensors: Sequence[Sensor]
    state_dir: Path
    now: Now
    on_state: Callable[[State], None] = lambda _: None  # every recorded state
    series: TimeSeries = field(default_factory=TimeSeries)
    history: HistorySource | None = None  # None: charts begin with the daemon
    aggregator: Aggregator = field(default_factory=Aggregator)
    check: CommandCheck | None = None  # None: the flags in force are not linted
    learner: Learner | None = None  # None: the performance model learns nothing
    model_search: ModelSearch | None = None  # None: the performance model is not asked
    git: Companion | None = None  # None: the command does not live in git
    find_state: Callable[[str], State | None] = lambda _: None  # of another target
    offset_s: float = 0.0  # by which its ticks differ from other targets', below 1
    reading: Reading | None = None
    observed: Observed | None = None  # the latest second
    self_metrics: SelfMetrics = field(default_factory=SelfMetrics)
    events: int = 0
    writable: bool = True  # whether the last write to the journal succeeded
    _inbox: Inbox = field(default_factory=asyncio.Queue)
    _recorded: State | None = None
    _recorded_at: datetime | None = None
    _watched: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _backlog: Backlog = field(default_factory=Backlog)
    _deferred: list[Event] = field(default_factory=list)  # outcomes that wait for a writable journal
    _next: NextRules | None = None
    _logs: ServerLogs = field(init=False)
    _headroom_note: HeadroomNote | None = None
    _regime_search: RegimeSearch | None = None

    def __post_init__(self) -> None:
        if (search := self.model_search) is not None:
            self._headroom_note = HeadroomNote(search=search)
            self._regime_search = RegimeSearch(search=search, file=self.state_dir / "loads.json")
            self._regime_search.use(self.machine.rules)
        self._logs = ServerLogs(self.engine)

    @property
    def target(self) -> str:
        return self.state.target

    @property
    def slo(self) -> Slo:
        return self.machine.rules.slo

    @property
    def last_step(self) -> float:
        return self.self_metrics.stepped_at or 0.0  # loop time, for the watchdog

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.check.findings if self.check is not None else ()

    @property
    def model(self) -> LearnedModel | None:
        return self.learner.model if self.learner is not None else None

    @property
    def search_result(self) -> ModelSearchResult | None:
        return self.model_search.result if self.model_search is not None else None

    @property
    def headroom(self) -> Headroom | None:
        return self._headroom_note.headroom if self._headroom_note is not None else None

    @property
    def regimes(self) -> RegimeAdvice | None:
        return self._regime_search.advice if self._regime_search is not None else None

    @property
    def peaks(self) -> Sequence[HourPeak]:
        return self.series.peaks.hours()

    @property
    def spending(self) -> Spending:
        rows, now_s = self.series.latest(WINDOW_MINUTES), self.now().timestamp()
        return measure_spending(rows, now_s, self.state.reachable, self.reading, self.machine.rules.gpu_hour)

    @property
    def sources(self) -> Mapping[str, SourceState]:
        return self.aggregator.sources()

    @property
    def minutes(self) -> Sequence[MinuteRow]:
        return self.series.minutes()

    @property
    def progress(self) -> str:
        return self.engine.progress

    def servers(self) -> Sequence[Server]:
        return self.state.reachable

    def emit(self, event: Event) -> None:
        self._inbox.put_nowait((event, None))

    async def submit(self, event: Event) -> State:
        """Submit an event and wait until it is recorded. Raises JournalError if it cannot be recorded."""
        done: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((event, done))
        return await done

    def reconfigure(self, wanted: NextRules) -> None:
        """Take these rules before the next event; while a rollout runs, after its end."""
        self._next = wanted

    @property
    def awaits_rules(self) -> bool:
        """Whether a rollout goes on under the rules from before a reload."""
        return self._next is not None and self.state.phase not in WITHOUT_ROLLOUT

    async def log(self, server: Server) -> tuple[str, ...]:
        return await self._logs.read(server)

    async def predict(self, changes: Setting, rate: float, prompt: float) -> WhatIf:
        if self.model_search is None:
            raise PredictionInputError(f"{self.target} learns no model of its servers")
        return await self.model_search.predict(changes, rate, prompt, self.spending.rates)

    async def predict_capacity(self) -> CapacityAnswer:
        if self.model_search is None:
            raise PredictionInputError(f"{self.target} learns no model of its servers")
        suggested = tuple((each.id, each.proposal.to) for each in self.state.suggestions.open)
        return await self.model_search.predict_capacity(suggested, self.spending.rates)

    async def run(self, epoch: int, started: Callable[[], None]) -> None:
        """Run until cancelled. A task that fails cancels all tasks of the loop."""
        structlog.contextvars.bind_contextvars(target=self.target)
        runner = EffectRunner(
            engine=self.engine,
            traffic=self.traffic,
            emit=self.emit,
            now=self.now,
            epoch=epoch,
            counted_by=self.aggregator.counted_by,
            exam=self.machine.rules.exam,
            self_metrics=self.self_metrics,
            on_kept=self._note_split,
            observe=lambda: self._wait_for_site(epoch),
            find_gpu=lambda: find_gpu_model(self.state, self.reading, self.machine.rules.gpu),
        )
        effects = await self._recover(epoch)
        started()
        async with asyncio.TaskGroup() as tasks:
            for sensor in self.sensors:
                tasks.create_task(sensor.run(self, self.ingest, self.now), name=f"{self.target} {sensor}")
            tasks.create_task(self._tick(), name=f"{self.target} tick")
            if self.state.mode != "advise":
                tasks.create_task(runner.follow_adapters(self.servers), name=f"{self.target} adapters")
            if self.history is not None:
                loading = self.series.load_history(self.history, self.servers(), self.now())
                tasks.create_task(loading, name=f"{self.target} history")
            learns: tuple[Companion | None, ...] = (self.learner, self.model_search, self.check, self.git)
            for companion in filter(None, (*learns, self._headroom_note, self._regime_search)):
                tasks.create_task(companion.run(self), name=f"{self.target} {type(companion).__name__}")
            while True:
                for effect in effects:
                    runner.start(effect, tasks)
                self._watch_servers(tasks, epoch)
                event, done = await self._inbox.get()
                effects = (*self._adopt_rules(runner), *(self._step(event, done) or ()))

    def _adopt_rules(self, runner: EffectRunner) -> tuple[Effect, ...]:
        """Replace the rules between two steps, for all who use them; none while that cannot be recorded."""
        if self._next is None or self.awaits_rules:
            return ()
        before, wanted = self.machine, self._next
        event = Reconfigured(
            at=self.now(),
            actor=wanted.actor,
            mode=wanted.mode,
            approval=wanted.approval,
            new_slo=wanted.rules.slo != before.rules.slo,
        )
        self.machine = Machine(wanted.rules)
        effects = self._step(event, None)
        if effects is None:
            self.machine = before
            return ()
        self._next = None
        runner.use(wanted.rules.exam)
        self.aggregator.slo = wanted.rules.slo
        for use in (search.use for search in (self.model_search, self._regime_search) if search is not None):
            use(wanted.rules)
        return effects

    async def _recover(self, epoch: int) -> tuple[Effect, ...]:
        """Recover before any event of the API is processed; wait while the disk is full."""

        async def recover() -> tuple[Effect, ...] | None:
            effects = self._step(await self._wait_for_site(epoch), None)
            self._deferred.clear()  # the next observation includes their outcome
            return effects

        recovering = AsyncRetrying(
            retry=retry_if_result(lambda effects: effects is None),
            wait=wait_fixed(RETRY_S),
            before_sleep=lambda _: self._reject_inbox(),
        )
        return await retry(recovering, recover) or ()

    def _reject_inbox(self) -> None:
        while not self._inbox.empty():
            _, done = self._inbox.get_nowait()
            if done is not None and not done.done():
                done.set_exception(JournalError(f"{self.target}: the start cannot be recorded yet"))

    def ingest(self, sample: Sample) -> None:
        self.aggregator.add(sample)
        if self.learner is not None:
            self.learner.add(sample)
        if isinstance(sample, SourceState):
            losses = self.self_metrics.lost.get(sample.source, 0)
            self.self_metrics.lost[sample.source] = losses + (not sample.available)
        else:
            key = (type(sample).__name__, sample.server if isinstance(sample, EngineSample) else "")
            self.self_metrics.received_at[key] = asyncio.get_running_loop().time()

    def _note_split(self, why: str) -> None:
        """Report once that the split cannot be kept in force, and once that it can again."""
        source = self.sources.get(TRAFFIC)
        if why != (source.why if source is not None else ""):
            self.ingest(SourceState(at=self.now(), source=TRAFFIC, available=not why, why=why))

    async def _observe_servers(self) -> Sequence[Server]:
        """Return the running servers; none while the engine does not answer."""
        with suppress(ActError):
            return await self.engine.observe()
        return ()

    async def _wait_for_site(self, epoch: int) -> AgentStarted:
        """Observe servers and traffic, waiting until engine and proxy answer."""
        observing = AsyncRetrying(
            retry=retry_if_exception_type(ActError),
            wait=wait_fixed(OBSERVE_EVERY_S),
            before_sleep=ReasonLog("daemon.waiting", {"target": self.target}),
        )
        return await retry(observing, partial(self._observe_site, epoch))

    async def _observe_site(self, epoch: int) -> AgentStarted:
        traffic, servers = await self.traffic.observe(), tuple(await self.engine.observe())
        return AgentStarted(
            at=self.now(),
            epoch=epoch,
            mode=self.state.mode,
            approval=self.state.approval,
            servers=servers,
            weights=traffic.weights if traffic else None,
        )

    async def _tick(self) -> None:
        """Once a second, aggregate the samples of the sensors into one event."""
        clock = asyncio.get_running_loop().time
        async for late_s in each_second(self.offset_s):
            began = clock()
            self.self_metrics.lag.observe(late_s)
            at, server = self.now(), self._main_server()
            self.reading = self.aggregator.reading(server.name, at) if server is not None else None
            arms = self.aggregator.take_request_counts(at)
            self.observed = observed = Observed(
                at=at,
                reading=self.reading,
                arms=arms,
                clients=self.aggregator.take_clients(),
                unknown_models=self.aggregator.take_unknown_models(),
                lost=self.aggregator.take_lost(),
                engines=self.aggregator.take_liveness(at),
                blind=self.aggregator.blind,
                calibration=self.aggregator.calibrate(at, select_usual(self.state, arms)),
                ahead=find_ends(self.state, self.find_state),
                findings=self.findings,
                model_search=self.search_result,
                headroom=self.headroom,
                peak_rps=self.series.peaks.highest_rps(),
                kv_peak=self.series.peaks.fullest_kv(),
                regimes=self.regimes,
            )
            self.series.add(observed)
            self.emit(observed)
            self.self_metrics.tick.observe(clock() - began)

    def _main_server(self) -> Server | None:
        """Return the server with the most traffic: blue, or green in the hold step."""
        weights = self.state.split.weights
        return max(self.state.servers, key=lambda server: weights.get(server.name, 0), default=None)

    def _step(self, event: Event, done: asyncio.Future[State] | None) -> tuple[Effect, ...] | None:
        """Decide and record the step, then return its effects. None if it cannot be recorded."""
        began = self.self_metrics.stepped_at = asyncio.get_running_loop().time()
        try:
            return self._decide(event, done)
        finally:
            self.self_metrics.step.observe(asyncio.get_running_loop().time() - began)

    def _decide(self, event: Event, done: asyncio.Future[State] | None) -> tuple[Effect, ...] | None:
        after, effects = self.machine.step(self.state, event)
        if isinstance(event, Observed):
            self._retry_deferred()
        try:
            self._record(after, event, effects)
        except JournalError as error:
            if self.writable:
                self.writable = False
                log.warning("audit.unwritable", target=self.target, why=str(error))
            if not self._may_go_unrecorded(after, event, effects):
                self._reject(event, done, error)
                return None
        self.state = after
        self._bind_log_context()
        self.events += 1
        if isinstance(event, EffectFailed) and event.number:  # without one, of a KeepAlive: its runner logs
            log.warning("effect.failed", target=self.target, why=event.why)
        if done is not None and not done.done():
            done.set_result(after)
        return effects

    def _bind_log_context(self) -> None:
        """Add the running rollout to all log lines, including those of its tasks."""
        rollout = self.state.rollout
        if rollout is not None and rollout.ended_at is None:
            structlog.contextvars.bind_contextvars(rollout=rollout.id)
        else:
            structlog.contextvars.unbind_contextvars("rollout")

    def _record(self, after: State, event: Event, effects: tuple[Effect, ...]) -> None:
        """Write backlogged entries before this one. Raises JournalError."""
        while (entry := self._backlog.next_entry(self.now())) is not None:
            self._append(entry)
            self._backlog.drop_first()
            self._recorded, self._recorded_at = self.state, event.at
            log.info("audit.recorded_late", target=self.target, action=entry.action)
        if self._must_record(after, effects, event):
            self._record_step(after, event, effects)

    def _append(self, entry: JournalEntry) -> None:
        began = asyncio.get_running_loop().time()
        self.journal.append(entry)
        self.self_metrics.append.observe(asyncio.get_running_loop().time() - began)
        if not self.writable:
            self.writable = True
            log.info("audit.writable_again", target=self.target, **self.journal.head.log_fields())

    def _may_go_unrecorded(self, after: State, event: Event, effects: tuple[Effect, ...]) -> bool:
        """Whether the step is taken without a record: it only updates counts, or only rolls back."""
        if not numbered_effects(effects) and state_without_counts(after) == state_without_counts(self.state):
            return True
        if not only_rolls_back(self.state, after, effects):
            return False
        entry = build_entry(self.state, after, event, numbered_effects(effects))
        self._backlog.add(entry)
        self.on_state(after)
        fields = {"target": self.target, "rollout": entry.op_id, "by": entry.actor.id, "result": entry.result}
        log.warning("audit.to_be_recorded", action=entry.action, why=entry.why, **fields)
        return True

    def _reject(self, event: Event, done: asyncio.Future[State] | None, error: JournalError) -> None:
        """Report the error to the caller; defer outcomes; drop what is tried again with the next event."""
        if done is not None and not done.done():
            done.set_exception(error)
        elif done is None and not isinstance(event, Observed | Reconfigured):
            self._deferred.append(event)

    def _retry_deferred(self) -> None:
        """Process again the outcomes that could not be recorded."""
        while self._deferred:
            self.emit(self._deferred.pop(0))

    def _must_record(self, after: State, effects: tuple[Effect, ...], event: Event) -> bool:
        if (
            self._recorded is None
            or isinstance(event, Reconfigured)
            or numbered_effects(effects)
            or state_without_counts(after) != state_without_counts(self._recorded)
        ):
            return True
        due = self._recorded_at is None or event.at - self._recorded_at >= COUNTS_EVERY
        if not self.writable:  # only an attempt shows whether it is writable again
            return True
        return due and state_without_recent(after) != state_without_recent(self._recorded)

    def _record_step(self, after: State, event: Event, effects: tuple[Effect, ...]) -> None:
        entry = build_entry(self.state, after, event, numbered_effects(effects))
        self._append(entry)
        self._recorded, self._recorded_at = after, event.at
        self.on_state(after)
        if state_without_counts(after) != state_without_counts(self.state):
            fields = {"target": self.target, "rollout": entry.op_id, "by": entry.actor.id}
            log.info(entry.action, **fields, why=entry.why, **self.journal.head.log_fields())

    def _watch_servers(self, tasks: asyncio.TaskGroup, epoch: int) -> None:
        """Watch each server that has an address, also one that has moved into an adopted server's place."""
        now = {server.name: server for server in self.servers()}
        for name in set(self._watched) - set(now):
            self._watched.pop(name).cancel()
            self.aggregator.forget(name)
            self.self_metrics.forget(name)
        for name, server in now.items():
            if (task := self._watched.get(name)) is None or (task.done() and not server.ours):
                watch = self._watch(server, epoch)
                self._watched[name] = tasks.create_task(watch, name=f"{self.target} watch {name}")

    async def _watch(self, server: Server, epoch: int) -> None:
        """Watch the server until it exits; an adopted one until it has been started again."""
        while True:
            await self.engine.watch(server, self.emit, self.now)
            if all(listed.ours for listed in self.state.servers if listed.name == server.name):
                return  # flettner starts it again
            running = None
            while running is None:
                await asyncio.sleep(OBSERVE_EVERY_S)
                seen = await self._observe_servers()
                running = next(
                    (s for s in seen if s.name == server.name or s.address == server.address), None
                )
                if running is not None and await self.engine.busy(running) is None:
                    running = None  # still loading its model
            server = replace(server, setting=running.setting, start=running.start, replicas=running.replicas)
            self.emit(await self._wait_for_site(epoch))
