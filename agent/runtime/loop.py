"""One target's loop, the only place that waits: take an event, step, write it down, act."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from agent.audit.backlog import Backlog, only_rolls_back
from agent.audit.entries import build_entry
from agent.audit.journal import Journal
from agent.audit.records import JournalEntry
from agent.domain.effects import Effect, KeepAlive
from agent.domain.errors import ActError, JournalError
from agent.domain.events import AgentStarted, EffectFailed, Event, Observed
from agent.domain.model import Server
from agent.domain.ports import Engine, Now, Sensor, Traffic
from agent.domain.reading import EngineSample, Reading, Sample, SourceState
from agent.domain.state import State
from agent.machine.step import Machine, numbered_effects, state_without_counts, state_without_recent
from agent.observe.aggregator import Aggregator
from agent.runtime.effect_runner import EffectRunner
from agent.telemetry.self_metrics import SelfMetrics

RETRY_S = 1.0  # for a journal that cannot be written at the start
LOOK_EVERY_S = 5.0  # for an adopted server that went away and may come back, perhaps with other flags
COUNTS_EVERY = timedelta(seconds=10)  # how much of a canary's counts a crash may forget
log = structlog.get_logger()

Inbox = asyncio.Queue[tuple[Event, asyncio.Future[State] | None]]


@dataclass(slots=True, kw_only=True)
class TargetLoop:
    """Carries one target's events to its machine, and effects to its actuators. `state` is in force."""

    state: State
    machine: Machine
    journal: Journal
    engine: Engine
    traffic: Traffic
    sensors: Sequence[Sensor]
    state_dir: Path
    now: Now
    heard: Callable[[State], None] = lambda _: None  # every state that was written down
    seen: Callable[[Observed], None] = lambda _: None  # once a second
    fold: Aggregator = field(default_factory=Aggregator)
    reading: Reading | None = None
    meters: SelfMetrics = field(default_factory=SelfMetrics)
    events: int = 0
    writable: bool = True  # whether the journal took what was last to be written
    _inbox: Inbox = field(default_factory=asyncio.Queue)
    _written: State | None = None
    _written_at: datetime | None = None
    _watched: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _late: Backlog = field(default_factory=Backlog)
    _held: list[Event] = field(default_factory=list)  # outcomes that wait for the journal

    @property
    def target(self) -> str:
        return self.state.target

    @property
    def last_step(self) -> float:
        """Loop time; the watchdog asks for progress here."""
        return self.meters.stepped_at or 0.0

    def servers(self) -> Sequence[Server]:
        """All that are up (the sensors' View)."""
        return self.state.up

    def emit(self, event: Event) -> None:
        self._inbox.put_nowait((event, None))

    async def submit(self, event: Event) -> State:
        """Hand in an event and wait until it is written down. Raises JournalError if it cannot be."""
        done: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((event, done))
        return await done

    async def run(self, epoch: int, started: Callable[[], None]) -> None:
        """Run until cancelled. Any task that fails takes the others down with it."""
        structlog.contextvars.bind_contextvars(target=self.target)
        exam = self.machine.rules.exam
        performer = EffectRunner(
            engine=self.engine,
            traffic=self.traffic,
            emit=self.emit,
            now=self.now,
            epoch=epoch,
            exam=exam,
            meters=self.meters,
        )
        effects = await self._recovered(epoch)
        started()
        async with asyncio.TaskGroup() as tasks:
            for sensor in self.sensors:
                tasks.create_task(sensor.run(self, self.hear, self.now), name=f"{self.target} {sensor}")
            tasks.create_task(self._tick(), name=f"{self.target} tick")
            renewing: asyncio.Task[None] | None = None
            while True:
                for effect in effects:
                    if isinstance(effect, KeepAlive):
                        if renewing is None or renewing.done():
                            renewing = tasks.create_task(performer.perform(effect))
                    else:
                        tasks.create_task(performer.perform(effect), name=f"{self.target} {effect.kind}")
                self._watch_servers(tasks, epoch)
                event, done = await self._inbox.get()
                effects = self._step(event, done) or ()

    async def _recovered(self, epoch: int) -> tuple[Effect, ...]:
        """Look around and decide, before whatever the API has put into the inbox; wait for a full disk."""
        while True:
            effects = self._step(await self._look_around(epoch), None)
            self._held.clear()  # the next look will see more
            if effects is not None:
                return effects
            await asyncio.sleep(RETRY_S)
            while not self._inbox.empty():
                _, done = self._inbox.get_nowait()
                if done is not None and not done.done():
                    done.set_exception(JournalError(f"{self.target}: the start cannot be written down yet"))

    def hear(self, sample: Sample) -> None:
        self.fold.add(sample)
        if isinstance(sample, SourceState):
            self.meters.lost.setdefault(sample.source, 0)
            self.meters.lost[sample.source] += not sample.available
        else:
            server = sample.server if isinstance(sample, EngineSample) else ""
            heard = (type(sample).__name__, server)
            self.meters.received_at[heard] = asyncio.get_running_loop().time()

    async def _seen(self) -> Sequence[Server]:
        """What runs; nothing, while the engine does not answer."""
        with suppress(ActError):
            return await self.engine.observe()
        return ()

    async def _look_around(self, epoch: int) -> AgentStarted:
        """What runs and where its traffic goes, before anything is decided; waits for who does not answer."""
        while True:
            try:
                return await self._found(epoch)
            except ActError as error:
                log.warning("waiting for what runs here", target=self.target, why=error.why)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _found(self, epoch: int) -> AgentStarted:
        seen, servers = await self.traffic.observe(), tuple(await self.engine.observe())
        weights = seen.weights if seen else None
        return AgentStarted(
            at=self.now(), epoch=epoch, mode=self.state.mode, servers=servers, weights=weights
        )

    async def _tick(self) -> None:
        """Once a second: fold what the sensors said into one event."""
        while True:
            due = asyncio.get_running_loop().time() + 1.0
            await asyncio.sleep(1.0)
            began = asyncio.get_running_loop().time()
            self.meters.lag.observe(began - due)
            at, carrier = self.now(), self._carrier()
            self.reading = self.fold.reading(carrier.name, at) if carrier is not None else None
            arms = self.fold.take_request_counts(at)
            equal = {server.name: arms[server.name] for server in self.state.standing if server.name in arms}
            observed = Observed(
                at=at,
                reading=self.reading,
                arms=arms,
                pulses=self.fold.take_pulses(at),
                blind=self.fold.blind,
                calibration=self.fold.calibrate(at, equal),
            )
            self.seen(observed)
            self.emit(observed)
            self.meters.tick.observe(asyncio.get_running_loop().time() - began)

    def _carrier(self) -> Server | None:
        """The server with most of the traffic: blue, but in the hold-back green."""
        weights = self.state.route.weights if self.state.route else {}
        return max(self.state.present, key=lambda server: weights.get(server.name, 0), default=None)

    def _step(self, event: Event, done: asyncio.Future[State] | None) -> tuple[Effect, ...] | None:
        """Decide, write down, and only then say what is to be done. None: that cannot be written."""
        began = self.meters.stepped_at = asyncio.get_running_loop().time()
        try:
            return self._decided(event, done)
        finally:
            self.meters.step.observe(asyncio.get_running_loop().time() - began)

    def _decided(self, event: Event, done: asyncio.Future[State] | None) -> tuple[Effect, ...] | None:
        after, effects = self.machine.step(self.state, event)
        if isinstance(event, Observed):
            self._hear_again()
        try:
            self._write_down(after, event, effects)
        except JournalError as error:
            if self.writable:
                self.writable = False
                log.warning("audit.unwritable", target=self.target, why=str(error))
            if not self._goes_unwritten(after, event, effects):
                self._refuse(event, done, error)
                return None
        self.state = after
        self._name_in_logs()
        self.events += 1
        if isinstance(event, EffectFailed):
            log.warning("effect failed", target=self.target, why=event.why)
        if done is not None and not done.done():
            done.set_result(after)
        return effects

    def _name_in_logs(self) -> None:
        """Whatever is logged while a rollout runs, by its tasks too, says which."""
        rollout = self.state.rollout
        if rollout is not None and rollout.ended_at is None:
            structlog.contextvars.bind_contextvars(rollout=rollout.id)
        else:
            structlog.contextvars.unbind_contextvars("rollout")

    def _write_down(self, after: State, event: Event, effects: tuple[Effect, ...]) -> None:
        """What is late first. Raises JournalError."""
        while (entry := self._late.next_entry(self.now())) is not None:
            self._append(entry)
            self._late.drop_first()
            self._written, self._written_at = self.state, event.at
            log.info("audit.recorded_late", target=self.target, action=entry.action)
        if self._worth_writing(after, effects, event):
            self._write(after, event, effects)

    def _append(self, entry: JournalEntry) -> None:
        began = asyncio.get_running_loop().time()
        self.journal.append(entry)
        self.meters.append.observe(asyncio.get_running_loop().time() - began)
        if not self.writable:
            self.writable = True
            log.info("audit.writable_again", target=self.target, **self.journal.head.log_fields())

    def _goes_unwritten(self, after: State, event: Event, effects: tuple[Effect, ...]) -> bool:
        """Whether the step is made all the same: only counts that a crash may forget, or only back."""
        if not numbered_effects(effects) and state_without_counts(after) == state_without_counts(self.state):
            return True
        if not only_rolls_back(self.state, after, effects):
            return False
        entry = build_entry(self.state, after, event, numbered_effects(effects))
        self._late.add(entry)
        self.heard(after)
        who = {"target": self.target, "rollout": entry.op_id, "by": entry.actor.id, "result": entry.result}
        log.warning("audit.to_be_recorded", action=entry.action, why=entry.why, **who)
        return True

    def _refuse(self, event: Event, done: asyncio.Future[State] | None, error: JournalError) -> None:
        """Who asked is told; an outcome is kept for later; of what was observed there is more in a second."""
        if done is not None and not done.done():
            done.set_exception(error)
        elif done is None and not isinstance(event, Observed):
            self._held.append(event)

    def _hear_again(self) -> None:
        """Outcomes that could not be written down are decided on anew."""
        while self._held:
            self.emit(self._held.pop(0))

    def _worth_writing(self, after: State, effects: tuple[Effect, ...], event: Event) -> bool:
        if (
            self._written is None
            or numbered_effects(effects)
            or state_without_counts(after) != state_without_counts(self._written)
        ):
            return True
        due = self._written_at is None or event.at - self._written_at >= COUNTS_EVERY
        if not self.writable:  # whether it is again shows only in a try
            return True
        return due and state_without_recent(after) != state_without_recent(self._written)

    def _write(self, after: State, event: Event, effects: tuple[Effect, ...]) -> None:
        entry = build_entry(self.state, after, event, numbered_effects(effects))
        self._append(entry)
        self._written, self._written_at = after, event.at
        self.heard(after)
        if state_without_counts(after) != state_without_counts(self.state):
            who = {"target": self.target, "rollout": entry.op_id, "by": entry.actor.id}
            log.info(entry.action, **who, why=entry.why, **self.journal.head.log_fields())

    def _watch_servers(self, tasks: asyncio.TaskGroup, epoch: int) -> None:
        """One watcher for each server that has an address, none for those that left."""
        now = {server.name: server for server in self.servers()}
        for name in set(self._watched) - set(now):
            self._watched.pop(name).cancel()
            self.fold.forget(name)
            self.meters.forget(name)
        for name in set(now) - set(self._watched):
            self._watched[name] = tasks.create_task(
                self._watch(now[name], epoch), name=f"{self.target} watch {name}"
            )

    async def _watch(self, server: Server, epoch: int) -> None:
        """Until it is gone; then, where somebody else runs it, until they have started it again."""
        while True:
            await self.engine.watch(server, self.emit, self.now)
            if server.ours:
                return
            found = None
            while found is None:
                await asyncio.sleep(LOOK_EVERY_S)
                found = next((s for s in await self._seen() if _is(s, server)), None)
                if found is not None and await self.engine.busy(found) is None:
                    found = None  # it still loads its model
            self.emit(await self._look_around(epoch))


def _is(found: Server, known: Server) -> bool:
    return found.name == known.name or found.address == known.address
