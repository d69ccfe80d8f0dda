"""Performs effects. A numbered one ends in one event, also on failure; a renewal may end in none."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from flettner.agent.domain.effects import (
    Drain,
    Effect,
    Examine,
    KeepAdapters,
    KeepAlive,
    KeepKnobs,
    Launch,
    Preflight,
    Renewal,
    Retire,
    Route,
    SetKnobs,
    Stop,
    WarmUp,
)
from flettner.agent.domain.errors import ActError, DriftError, FencedError
from flettner.agent.domain.events import (
    AdaptersRead,
    Drained,
    EffectFailed,
    Event,
    Examined,
    KnobsSet,
    Launched,
    Preflighted,
    Retired,
    Routed,
    Stopped,
    Warmed,
)
from flettner.agent.domain.model import Adapter, PreflightResult, Server
from flettner.agent.domain.ports import Engine, Now, Traffic
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.machine.suggestion_notes import describe_memory_fit
from flettner.agent.quality.answer_check import Examiner
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from flettner.agent.telemetry.self_metrics import SelfMetrics

log = structlog.get_logger()

POLL_S = 0.25  # of a drain
QUIET_POLLS = 2  # consecutive polls without open requests: a request between both counters appears in one
UNSEEN: Mapping[RequestSource, str] = {
    "engine": "vLLM's metrics count the requests, not the proxy: what fails before vLLM (refused "
    "connections, the gateway's errors), clients that disconnect, and sessions are not seen",
    "access_log": "the gateway's access log counts the requests once they have ended: requests that still "
    "wait, attempts that the gateway repeated, and sessions are not seen",
}
"""What the judge does not see, for each source of requests."""

ROUTE_S = 20.0  # time to confirm or renew a split; a split fails then, a renewal ends when the next is due
READ_ADAPTERS_EVERY_S = 5.0
LOOK_AGAIN_S = 5.0  # least time between observations after a third party's change


@dataclass(slots=True)
class EffectRunner:
    """Performs one target's effects."""

    engine: Engine
    traffic: Traffic
    emit: Callable[[Event], None]
    now: Now
    epoch: int  # of this daemon
    counted_by: RequestSource = "proxy"
    exam: GoldenPromptOptions = field(default_factory=GoldenPromptOptions)
    self_metrics: SelfMetrics = field(default_factory=SelfMetrics)
    on_kept: Callable[[str], None] = lambda _: None  # why a KeepAlive failed; empty: it did not
    observe: Callable[[], Awaitable[Event]] | None = None  # the servers, after a third party's change
    find_gpu: Callable[[], str] = lambda: ""  # the model of the servers' GPUs; empty: not known
    _examiner: Examiner = field(init=False)
    _starting: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _stopping: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _epoch_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _kept: bool = True  # whether the latest KeepAlive succeeded
    _wrote_route: bool = False  # whether this process configured the proxy
    _renewing: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by kind: one at a time
    _renewal: tuple[KeepAlive, float] | None = None  # the latest, and when it began, as the loop's time
    _adapters_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from a read to its event: an event of before a load must not follow the one of after it."""
    _refused: set[str] = field(default_factory=set)  # adapters, as sentences that were logged
    _knobs_kept: bool = True  # whether the latest KeepKnobs succeeded
    _knobs_at_s: float = 0.0  # when values were last set or renewed on all servers, as the loop's time

    def __post_init__(self) -> None:
        self._examiner = Examiner(engine=self.engine, exam=self.exam)

    def use(self, exam: GoldenPromptOptions) -> None:
        """Examine the servers of later rollouts so."""
        self.exam, self._examiner = exam, Examiner(engine=self.engine, exam=exam)

    def start(self, effect: Effect, tasks: asyncio.TaskGroup) -> None:
        """Perform the effect in a task of its own. A renewal is left out while the earlier one still runs.

        A Stop or Retire cancels what was requested before it of its server's start; a Launch waits for the
        stop that was requested before it. Tasks may run in another order than they were requested in.
        """
        if isinstance(effect, KeepAlive | Route):
            self._end_late_renewal()
        if not isinstance(effect, Renewal):
            before = self._end_start(effect)
            task = tasks.create_task(self._perform_after(before, effect), name=effect.kind)
            self._register(effect, task)
        elif (running := self._renewing.get(effect.kind)) is None or running.done():
            self._renewing[effect.kind] = tasks.create_task(self.perform(effect))
            if isinstance(effect, KeepAlive):
                self._renewal = effect, asyncio.get_running_loop().time()

    def _end_late_renewal(self) -> None:
        """End a renewal of the split that takes too long: the next one may succeed, and a new split waits."""
        if self._renewal is None:
            return
        effect, began_s = self._renewal
        running, took_s = self._renewing[effect.kind], asyncio.get_running_loop().time() - began_s
        if running.done() or running.cancelling() or took_s <= ROUTE_S:
            return
        running.cancel()
        self._count(effect, took_s, failed=True)
        self._note_kept(f"{effect.kind} timed out")

    def _end_start(self, effect: Effect) -> asyncio.Task[None] | None:
        """Return the task that has to end before the effect."""
        task = None
        if isinstance(effect, Launch):
            task = self._stopping.get(effect.server.name)
        elif isinstance(effect, Stop | Retire) and (task := self._starting.pop(effect.server.name, None)):
            task.cancel()
        return task

    def _register(self, effect: Effect, task: asyncio.Task[None]) -> None:
        if isinstance(effect, Launch | WarmUp):
            self._starting[effect.server.name] = task
        elif isinstance(effect, Examine):
            self._starting[(effect.green or effect.blue).name] = task
        elif isinstance(effect, Stop | Retire):
            self._stopping[effect.server.name] = task

    async def _perform_after(self, before: asyncio.Task[None] | None, effect: Effect) -> None:
        if before is not None:
            await asyncio.wait({before})
        await self.perform(effect)

    async def perform(self, effect: Effect) -> None:
        """Perform the effect and emit its event. Raises only FencedError: another daemon is active."""
        began = asyncio.get_running_loop().time()
        event: Event | None
        drifted = False
        try:
            event = await self._act(effect)
        except FencedError:
            raise
        except ActError as error:
            event = self._failure(effect, error.why, error.log, external=error.external)
            drifted = isinstance(error, DriftError)
        except TimeoutError:
            event = self._failure(effect, f"{effect.kind} timed out")
        except OSError as error:
            event = self._failure(effect, f"{effect.kind}: {error}", external=True)
        self._count(effect, asyncio.get_running_loop().time() - began, failed=isinstance(event, EffectFailed))
        if isinstance(effect, KeepAlive):
            self._note_kept(event.why if isinstance(event, EffectFailed) else "")
        if isinstance(effect, KeepKnobs):
            event = self._note_knobs(effect.change, event.why if isinstance(event, EffectFailed) else "")
        if event is not None:
            self.emit(event)
        if drifted and self.observe is not None:
            self.emit(await self.observe())
            await asyncio.sleep(LOOK_AGAIN_S)

    def _note_kept(self, why: str) -> None:
        """Log once that the split cannot be kept in force, and once that it can again."""
        if why and self._kept:
            log.warning("traffic.split_not_kept", why=why)
        elif not why and not self._kept:
            log.info("traffic.split_kept_again")
        self._kept = not why
        self.on_kept(why)

    def _note_knobs(self, change: SetKnobs, why: str) -> EffectFailed | None:
        """Log once that values cannot be kept in force, as while a server starts, and once that they can.

        The change has failed once its lease has ended: until then the servers have its values.
        """
        if why and self._knobs_kept:
            log.warning("knobs.not_kept", why=why)
        elif not why and not self._knobs_kept:
            log.info("knobs.kept_again")
        self._knobs_kept = not why
        age_s = asyncio.get_running_loop().time() - self._knobs_at_s
        if not why or change.lease_s is None or age_s < change.lease_s:
            return None
        return EffectFailed(at=self.now(), number=change.number, why=f"the lease could not be renewed: {why}")

    def _count(self, effect: Effect, took_s: float, *, failed: bool) -> None:
        leased = isinstance(effect, KeepAlive) and effect.route.leased is not None
        if leased or (isinstance(effect, Route) and effect.leased is not None):
            self.self_metrics.count_renewal(asyncio.get_running_loop().time(), failed=failed)
        self.self_metrics.count_effect(effect.kind, took_s, failed=failed)

    async def _act(self, effect: Effect) -> Event | None:
        match effect:
            case Preflight(number=number):
                result = await self._preflight(effect)
                return Preflighted(at=self.now(), number=number, preflight=result)
            case Launch(number=number):
                await self._check_epoch()
                server = await self.engine.launch(effect.server, effect.deadline_s)
                server = replace(server, start=effect.server.start)
                server, refused = await self._load_adapters(server, effect.server.adapters)
                return Launched(at=self.now(), number=number, server=server, refused=refused)
            case WarmUp(number=number):
                own = self.exam.prompts if self.exam.own else ()
                await self.engine.warm_up(
                    effect.server, effect.requests, effect.deadline_s, own, self.exam.prefixes
                )
                return Warmed(at=self.now(), number=number)
            case Examine(number=number):
                quality = await self._examiner.examine(effect)
                return Examined(at=self.now(), number=number, quality=quality)
            case Route(number=number):
                async with asyncio.timeout(ROUTE_S):
                    await self._route(effect)
                return Routed(at=self.now(), number=number)
            case SetKnobs() | KeepKnobs() | KeepAlive() | KeepAdapters():
                return await self._set_or_renew(effect)
            case Drain(number=number):
                return Drained(at=self.now(), number=number, open=await self._drain(effect))
            case Stop(number=number):
                await self._check_epoch()
                how = await self.engine.stop(effect.server, effect.keep)
                return Stopped(at=self.now(), number=number, how=how or "")
            case Retire(number=number):
                await self._check_epoch()
                moved = await self.engine.retire(effect.server)
                return Retired(at=self.now(), number=number, moved=moved or "")

    async def _route(self, route: Route) -> None:
        """Green gets a share only if the process that listens at its address is green's."""
        for server in route.servers:
            if server.name == route.leased:
                await self.engine.check_address(server)
        await self._check_epoch_once()
        await self.traffic.route(route)

    async def follow_adapters(self, servers: Callable[[], Sequence[Server]]) -> None:
        """Report a server's adapters when they change: clients load and unload them. Run until cancelled."""
        while True:
            await asyncio.gather(self._read_adapters(servers()), asyncio.sleep(READ_ADAPTERS_EVERY_S))

    async def _read_adapters(self, servers: Sequence[Server]) -> None:
        """One that hangs delays no other's report."""

        async def read(server: Server) -> None:
            adapters = await self.engine.adapters(server)
            if adapters is not None and adapters != server.adapters:
                self.emit(AdaptersRead(at=self.now(), server=server.name, adapters=adapters))

        async with self._adapters_lock:
            await asyncio.gather(*map(read, servers))

    async def _load_adapters(
        self, server: Server, wanted: Sequence[Adapter]
    ) -> tuple[Server, tuple[str, ...]]:
        """Load what a new server lacks; return it with the adapters it serves, and why it refused some."""
        async with self._adapters_lock:
            refused = await self.engine.put_adapters(server, wanted) if wanted else ()
            return replace(server, adapters=await self.engine.adapters(server) or ()), tuple(refused)

    async def _keep_adapters(self, effect: KeepAdapters) -> AdaptersRead | None:
        """Log once what the server refuses: what it lacks keeps the rollout from going on."""
        async with self._adapters_lock:
            refused = await self.engine.put_adapters(effect.server, effect.load, effect.unload)
            serves = await self.engine.adapters(effect.server)
        for why in {*refused} - self._refused:
            self._refused.add(why)
            log.warning("adapters.refused", server=effect.server.name, why=why)
        if serves is None:
            return None
        return AdaptersRead(at=self.now(), server=effect.server.name, adapters=serves)

    async def _set_or_renew(self, effect: SetKnobs | Renewal) -> Event | None:
        if isinstance(effect, KeepAlive):
            await self._check_epoch_once()
            await self.traffic.keep_alive(effect.route)
            return None
        if isinstance(effect, KeepAdapters):
            return await self._keep_adapters(effect)
        change = effect.change if isinstance(effect, KeepKnobs) else effect
        number, began_s = (change.epoch, change.number), asyncio.get_running_loop().time()
        calls = (
            self.engine.set_knobs(server, change.values, number, change.lease_s) for server in change.servers
        )
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            if failure is not None:
                raise failure
        self._knobs_at_s = began_s
        return KnobsSet(at=self.now(), number=change.number) if isinstance(effect, SetKnobs) else None

    async def _preflight(self, effect: Preflight) -> PreflightResult:
        gpu = self.find_gpu()
        result = await self.engine.preflight(effect.servers, effect.setting, effect.wanted, effect.start, gpu)
        unseen = [UNSEEN[self.counted_by]] if self.counted_by in UNSEEN else []
        notes = (*describe_memory_fit(effect, gpu), *result.notes, *unseen)
        return replace(result, notes=notes)

    async def _check_epoch(self) -> None:
        """Raise FencedError if another daemon of a newer or the same epoch configured the proxy.

        Two daemons that start at once without the lock may share an epoch. An engine detects the other one
        only when it starts a server. A proxy that does not answer blocks nothing.
        """
        async with self._epoch_lock:
            newest = 0
            with suppress(ActError):
                seen = await self.traffic.observe()
                newest = seen.epoch if seen is not None else 0
            if newest > self.epoch or (newest == self.epoch and not self._wrote_route):
                raise FencedError(f"the proxy has epoch {newest}, this daemon {self.epoch}")

    async def _check_epoch_once(self) -> None:
        """Check the epoch before the first write; ours exceeds the one found at the proxy."""
        if not self._wrote_route:
            await self._check_epoch()
            self._wrote_route = True

    def _failure(
        self, effect: Effect, why: str, log: tuple[str, ...] = (), *, external: bool = False
    ) -> EffectFailed:
        number = 0 if isinstance(effect, Renewal) else effect.number
        return EffectFailed(at=self.now(), number=number, why=why, log=log, external=external)

    async def _drain(self, effect: Drain) -> int:
        """Return the number of requests still open at the deadline; 0 if all ended before.

        Raises ActError if the server has a share again, which a third party gave it, or if a proxy that
        counts requests never reported one. Where it counts none, an engine that never answers has none that
        could end.
        """
        quiet_polls, open_requests, is_counted = 0, 0, not self.traffic.counts_requests
        deadline = asyncio.get_running_loop().time() + effect.deadline_s
        while quiet_polls < QUIET_POLLS:
            at_proxy = await self.traffic.in_flight(effect.server.name)
            in_engine = await self.engine.busy(effect.server)
            counted = at_proxy if self.traffic.counts_requests else in_engine
            open_requests, is_counted = max(at_proxy or 0, in_engine or 0), is_counted or at_proxy is not None
            settled = await self.traffic.is_settled()
            quiet_polls = 0 if open_requests or counted is None or not settled else quiet_polls + 1
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        if quiet_polls < QUIET_POLLS and not is_counted:
            raise ActError(f"the proxy does not report the open requests of {effect.server.name}")
        await self._check_without_share(effect.server.name)
        return open_requests

    async def _check_without_share(self, name: str) -> None:
        """Raise ActError if the server has a share. A proxy that does not answer is no reason to wait."""
        seen = None
        with suppress(ActError):
            seen = await self.traffic.observe()
        if seen is not None and (share := seen.weights.get(name)):
            raise ActError(f"a third party gave {name} {share} % while it drained", external=True)
