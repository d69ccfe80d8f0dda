"""The daemon: the loops of all targets in one process, and the view of them that the API reads."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog

from flettner.agent.audit.history import Accepted, History, Point
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.offsets import SLICE_BYTES
from flettner.agent.audit.records import DAEMON, JournalEntry, parse_state
from flettner.agent.config.changes import ReloadReport
from flettner.agent.domain.errors import ConfigError, JournalError
from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.notify.delivery import DeliveryCounts, NoticeDelivery
from flettner.agent.prediction.worker import InlineWorker, Worker
from flettner.agent.runtime.anchor_schedule import AnchorSchedule
from flettner.agent.runtime.config_reload import ConfigReload
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.process_clock import ProcessClock, is_at_rest
from flettner.agent.runtime.trace_export import TraceExport
from flettner.agent.telemetry.sdnotify import SystemdNotifier, find_notifier, read_watchdog_s

STUCK_S = 10.0  # without a step, at one tick a second, after which a loop counts as stuck
log = structlog.get_logger()


@dataclass(slots=True)
class Daemon:
    """Runs the loops; answers the API from memory (flettner.agent.api.daemon_view.DaemonView)."""

    loops: Mapping[str, TargetLoop]
    journal: Journal
    history: History
    deliveries: Sequence[NoticeDelivery] = ()
    anchors: AnchorSchedule | None = None
    traces: TraceExport | None = None  # None: no collector is configured
    worker: Worker = field(default_factory=InlineWorker)
    systemd: SystemdNotifier = field(default_factory=find_notifier)
    config: ConfigReload | None = None  # None: there is no file to reload
    reload_credentials: Callable[[], None] = lambda: None
    _delivering: list[tuple[NoticeDelivery, asyncio.Task[None]]] = field(default_factory=list)
    _tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    time: ProcessClock = field(default_factory=ProcessClock)
    _started: set[str] = field(default_factory=set)

    async def run(self, epoch: int, ready: Callable[[], None]) -> None:
        """Run until SIGTERM or SIGINT; unfinished rollouts are in the journal."""
        root = asyncio.current_task()
        running = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(stop, lambda: root and root.cancel())
        with suppress(asyncio.CancelledError):
            async with self._tasks as tasks:
                running.add_signal_handler(
                    signal.SIGHUP, lambda: tasks.create_task(self._reload_for_signal(), name="reload")
                )
                for name, loop in self.loops.items():
                    tasks.create_task(loop.run(epoch, partial(self._started.add, name)), name=name)
                tasks.create_task(self._feed_watchdog(ready), name="watchdog")
                if self.anchors is not None:
                    tasks.create_task(self.anchors.run(), name="anchors")
                if self.traces is not None:
                    tasks.create_task(self.traces.run(), name="traces")
                self.deliver(self.deliveries)
        self.systemd.stopping("unfinished rollouts are in the journal")
        await self.worker.close()

    def deliver(self, deliveries: Sequence[NoticeDelivery]) -> None:
        """Run exactly these deliveries: end those that are not listed, start those that do not run."""
        for delivery, task in self._delivering:
            if not any(delivery is listed for listed in deliveries):
                task.cancel()
        going = [(delivery, task) for delivery, task in self._delivering if not task.cancelling()]
        new = [delivery for delivery in deliveries if not any(delivery is old for old, _ in going)]
        self._delivering = [
            *going,
            *((each, self._tasks.create_task(each.run(), name=f"notify {each.name}")) for each in new),
        ]
        self.deliveries = deliveries

    async def reload(self, actor: str) -> ReloadReport:
        """Reload credentials and config; an invalid config keeps no revoked token in force.

        Raises ConfigError or JournalError; then the config in force is the earlier one.
        """
        self.systemd.reloading()
        try:
            self.reload_credentials()
            return await self.config.take_file(actor, self) if self.config is not None else ReloadReport()
        finally:
            self.systemd.ready(self._summary())

    async def _reload_for_signal(self) -> None:
        with suppress(ConfigError, JournalError):  # logged, and part of the status
            await self.reload("")

    async def _feed_watchdog(self, ready: Callable[[], None]) -> None:
        """Report READY once every loop has recovered, then feed systemd's watchdog from their progress."""
        every_s = min((read_watchdog_s() or STUCK_S) / 3, 1.0)
        reported = False
        while True:
            self.follow_wall_clock()
            if self.ready():
                if not reported:
                    ready()
                    self.systemd.ready()
                    reported = True
                self.systemd.watchdog()
                self.systemd.status(self._summary())
            await asyncio.sleep(every_s)

    def follow_wall_clock(self) -> None:
        """Take the wall clock's time if no target has an open deadline; the status says if it has not."""
        changed = self.time.follow(at_rest=all(is_at_rest(loop.state) for loop in self.loops.values()))
        if changed is not None:
            for loop in self.loops.values():
                loop.ingest(changed)

    def _summary(self) -> str:
        phases = (f"{name} {loop.state.phase.value}" for name, loop in self.loops.items())
        faults = ["the audit journal is full"] if self.journal.full else []
        if self.config is not None and self.config.failure:
            faults.append(f"config not reloaded: {self.config.failure}")
        return ", ".join((*phases, *faults))

    def targets(self) -> Mapping[str, TargetLoop]:
        return self.loops

    def suggestions(self) -> Sequence[Suggestion]:
        return self.history.suggestions()

    def accepted(self, request: str) -> Accepted | None:
        recorded = self.history.find_request(request)
        if recorded is None:
            return None
        asked, seq = recorded
        states = [parse_state(record) for record in self.journal.after(seq - 1, 1) if record["seq"] == seq]
        return Accepted(asked=asked, state=states[0]) if states and states[0] is not None else None

    def points(self, rollout: str) -> Sequence[Point]:
        return self.history.points(rollout)

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        """Return all rollouts, the running ones with the latest counts."""
        latest = (loop.state.rollout for loop in self.loops.values())
        now = {rollout.id: rollout for rollout in latest if rollout is not None}
        return [(target, now.get(rollout.id, rollout)) for target, rollout in self.history.rollouts()]

    def records(self, after: int, limit: int) -> Sequence[Mapping[str, object]]:
        return self.journal.after(after, limit, SLICE_BYTES)

    def follow(self) -> AsyncIterator[Mapping[str, object]]:
        return self.journal.subscribe()

    def report_failed_auth(self, attempts: Mapping[str, int]) -> None:
        failed = sum(attempts.values())
        why = f"{failed} request{'s' if failed > 1 else ''} failed authentication"
        self.journal.append(
            JournalEntry(
                at=self.now(),
                actor=DAEMON,
                action="auth.failed",
                why=why,
                after={"attempts": attempts},
                epoch=self.journal.epoch(),
            )
        )

    def wait_s(self, actor: str, target: str) -> float:
        return self.journal.budget.wait_s(actor, target, self.now())

    def ready(self) -> bool:
        return self._started == set(self.loops) and not self.stuck()

    def stuck(self) -> bool:
        now = asyncio.get_running_loop().time()
        return any(now - self.loops[name].last_step >= STUCK_S for name in self._started)

    def now(self) -> datetime:
        return self.time.now()

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def delivery_counts(self) -> Mapping[str, DeliveryCounts]:
        return {delivery.name: delivery.counts for delivery in self.deliveries}

    def receivers(self) -> Mapping[str, NoticeDelivery]:
        return {delivery.name: delivery for delivery in self.deliveries}

    def counters(self) -> Mapping[str, float]:
        return {
            "events_total": sum(loop.events for loop in self.loops.values()),
            "audit_head_seq": self.journal.head.seq,
            "audit_writable": all(loop.writable for loop in self.loops.values()),
            "audit_anchor_seq": self.anchors.latest.seq if self.anchors else 0,
            "audit_bytes": self.journal.size,
            "audit_keep_bytes": self.journal.limits.keep_bytes,
            "audit_full": self.journal.full,
            "config_last_reload_successful": self.config is None or not self.config.failure,
        }


def end_on_signals() -> None:
    """Until the daemon runs; the main process of a container would ignore them."""
    starting = asyncio.current_task()
    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, lambda: starting and starting.cancel())
