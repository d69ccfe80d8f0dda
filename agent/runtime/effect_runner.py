"""Carrying effects out: each ends in exactly one event, whatever happens."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from agent.domain.effects import (
    Drain,
    Effect,
    Examine,
    KeepAlive,
    Launch,
    Preflight,
    Retire,
    Route,
    Stop,
    WarmUp,
)
from agent.domain.errors import ActError, FencedError
from agent.domain.events import (
    Drained,
    EffectFailed,
    Event,
    Examined,
    Launched,
    Preflighted,
    Retired,
    Routed,
    Stopped,
    Warmed,
)
from agent.domain.model import Server
from agent.domain.ports import Engine, Now, Traffic
from agent.quality.answer_check import Examiner
from agent.quality.golden_prompts import GoldenPromptOptions
from agent.telemetry.self_metrics import SelfMetrics

POLL_S = 0.25  # of a drain
QUIET_POLLS = 2  # in a row with nothing open: a request between the two counters is seen by one of them
ROUTE_S = 20.0  # a split that is not confirmed by then counts as failed


@dataclass(slots=True)
class EffectRunner:
    """One target's effects. A Retire first stops a Launch, WarmUp or Examine of its server."""

    engine: Engine
    traffic: Traffic
    emit: Callable[[Event], None]
    now: Now
    epoch: int  # of this daemon
    exam: GoldenPromptOptions = field(default_factory=GoldenPromptOptions)
    meters: SelfMetrics = field(default_factory=SelfMetrics)
    _examiner: Examiner = field(init=False)
    _starting: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _stopping: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: bool = False  # whether the proxy was told anything by this process

    def __post_init__(self) -> None:
        self._examiner = Examiner(engine=self.engine, exam=self.exam)

    async def perform(self, effect: Effect) -> None:
        """Act, then report. Raises FencedError only: another daemon acts here, so this one must end."""
        began = asyncio.get_running_loop().time()
        event: Event | None
        try:
            event = await self._act(effect)
        except FencedError:
            raise
        except ActError as error:
            event = self._failed(effect, error.why, error.log)
        except TimeoutError:
            event = self._failed(effect, f"{effect.kind} got no answer in time")
        except OSError as error:
            event = self._failed(effect, f"{effect.kind}: {error}")
        self._count(effect, asyncio.get_running_loop().time() - began, failed=isinstance(event, EffectFailed))
        if event is not None:
            self.emit(event)

    def _count(self, effect: Effect, took_s: float, *, failed: bool) -> None:
        leased = isinstance(effect, KeepAlive) and effect.route.leased is not None
        if leased or (isinstance(effect, Route) and effect.leased is not None):
            self.meters.count_renewal(asyncio.get_running_loop().time(), failed=failed)
        self.meters.count_effect(effect.kind, took_s, failed=failed)

    async def _act(self, effect: Effect) -> Event | None:
        match effect:
            case Preflight(number=number):
                found = await self.engine.preflight(effect.servers, effect.setting, effect.wanted)
                return Preflighted(at=self.now(), number=number, prospect=found)
            case Launch(number=number):
                self._started(effect.server)
                await self._end_of_stop(effect.server)
                await self._refuse_under_newer()
                server = await self.engine.launch(effect.server, effect.deadline_s)
                return Launched(at=self.now(), number=number, server=server)
            case WarmUp(number=number):
                self._started(effect.server)
                own = self.exam.prompts if self.exam.own else ()
                await self.engine.warm_up(effect.server, effect.requests, effect.deadline_s, own)
                return Warmed(at=self.now(), number=number)
            case Examine(number=number):
                self._started(effect.green or effect.blue)
                quality = await self._examiner.examine(effect)
                return Examined(at=self.now(), number=number, quality=quality)
            case Route(number=number):
                async with asyncio.timeout(ROUTE_S):
                    await self._tell_first()
                    await self.traffic.route(effect)
                return Routed(at=self.now(), number=number)
            case KeepAlive():
                await self._tell_first()
                await self.traffic.keep_alive(effect.route)
                return None
            case Drain(number=number):
                lost = await self._drain(effect)
                return Drained(at=self.now(), number=number, lost=lost)
            case Stop(number=number):
                await self._stop_starting(effect.server)
                await self._refuse_under_newer()
                self._ended(effect.server)
                await self.engine.stop(effect.server)
                return Stopped(at=self.now(), number=number)
            case Retire(number=number):
                await self._stop_starting(effect.server)
                await self._refuse_under_newer()
                self._ended(effect.server)
                await self.engine.retire(effect.server)
                return Retired(at=self.now(), number=number)

    async def _refuse_under_newer(self) -> None:
        """Raises FencedError when a newer daemon has told the proxy anything, or one of the same epoch has.

        Two that start at once, the lock gone, may have the same. An engine knows of the other one only when
        it starts a server. A proxy that does not answer stops nothing.
        """
        async with self._looking:
            newest = 0
            with suppress(ActError):
                seen = await self.traffic.observe()
                newest = seen.epoch if seen is not None else 0
            if newest > self.epoch or (newest == self.epoch and not self._told):
                raise FencedError(f"the proxy is of epoch {newest}, this daemon is {self.epoch}")

    async def _tell_first(self) -> None:
        """Before the first write: a daemon's epoch is larger than what it found at the proxy."""
        if not self._told:
            await self._refuse_under_newer()
            self._told = True

    def _failed(self, effect: Effect, why: str, log: tuple[str, ...] = ()) -> EffectFailed:
        number = 0 if isinstance(effect, KeepAlive) else effect.number
        return EffectFailed(at=self.now(), number=number, why=why, log=log)

    def _started(self, server: Server) -> None:
        if task := asyncio.current_task():
            self._starting[server.name] = task

    def _ended(self, server: Server) -> None:
        if task := asyncio.current_task():
            self._stopping[server.name] = task

    async def _end_of_stop(self, server: Server) -> None:
        """A server that is still being stopped or retired is started again only when that is over."""
        task = self._stopping.get(server.name)
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait({task})

    async def _stop_starting(self, server: Server) -> None:
        task = self._starting.pop(server.name, None)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _drain(self, effect: Drain) -> int:
        """Requests still open when the deadline passed; 0 when all had ended.

        Raises ActError when the proxy, the only one who knows every request, never said.
        """
        quiet, left, known = 0, 0, False
        deadline = asyncio.get_running_loop().time() + effect.deadline_s
        while quiet < QUIET_POLLS:
            at_proxy = await self.traffic.in_flight(effect.server.name)
            in_engine = await self.engine.busy(effect.server)
            left, known = max(at_proxy or 0, in_engine or 0), known or at_proxy is not None
            quiet = 0 if left or at_proxy is None else quiet + 1
            if asyncio.get_running_loop().time() >= deadline and known:
                return left
            if asyncio.get_running_loop().time() >= deadline:
                raise ActError(f"the proxy does not say what {effect.server.name} still has open")
            await asyncio.sleep(POLL_S)
        return 0
