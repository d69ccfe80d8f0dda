"""An event loop in virtual time that runs ready callbacks in a seeded order and can freeze a process."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

EPOCH = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass(eq=False, slots=True)
class Owner:
    """The process that owns a callback. The callbacks of a frozen process wait."""

    frozen: bool = False
    parked: list[asyncio.Handle] = field(default_factory=list)


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class NumberedTask(asyncio.Task[Any]):
    """Hashed by its number, so that a TaskGroup cancels its set of tasks in the same order each time."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        number: int,
        loop: asyncio.AbstractEventLoop,
        **options: object,
    ) -> None:
        self._number = number
        super().__init__(coro, loop=loop, **options)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """No real waiting: without a ready callback, time jumps to the next timer. No sockets, no threads."""

    _ready: deque[asyncio.Handle]

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._shuffle = random.shuffle
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._asked = count()
        self.now_s = 0.0
        self.skew_s = 0.0  # of the host's wall clock
        self._clock_resolution = 1e-9
        self.world = Context()  # callbacks without a process
        self.broke: BaseException | None = None  # a callback of the world failed: a bug of the simulation
        self.set_exception_handler(self._heard)
        numbers = count()
        self.set_task_factory(
            lambda loop, coro, **options: NumberedTask(coro, number=next(numbers), loop=loop, **options)
        )

    def _heard(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ignore abandoned tasks of killed processes; record failed callbacks."""
        if "handle" in context:
            self.broke = context.get("exception")
            self.stop()

    def time(self) -> float:
        return self.now_s

    def wall(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now_s + self.skew_s)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise RuntimeError("every task waits for something that no timer will bring")
            self.now_s = max(self.now_s, timers[0][0])
        now_s = self.now_s
        while timers and timers[0][0] <= now_s:
            ready.append(heapq.heappop(timers)[2])
        batch = list(ready)
        ready.clear()
        if len(batch) > 1:
            self._shuffle(batch)
        for handle in batch:
            if handle._cancelled:
                continue
            owner = handle._context.get(OWNER)  # type: ignore[attr-defined]
            if owner is not None and owner.frozen:
                owner.parked.append(handle)
            else:
                handle._run()

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, but in a heap of plain tuples."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._asked), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The loop drops a cancelled timer when it is due."""

    def _write_to_self(self) -> None:
        """The loop never sleeps."""

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: object
    ) -> asyncio.Future[Any]:
        """Run it at once: a thread would take real time."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)
        return done

    def owned_by(self, owner: Owner) -> Context:
        context = copy_context()
        context.run(OWNER.set, owner)
        return context

    def thaw(self, owner: Owner) -> None:
        owner.frozen = False
        self._ready.extend(owner.parked)
        owner.parked.clear()

    def outside(self, delay_s: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Schedule a callback of the world, independent of the current process."""
        return self.call_later(delay_s, call, context=self.world)


def in_virtual_time(loop: VirtualLoop, story: Coroutine[Any, Any, Any]) -> None:
    """Run `story` to its end and cancel the remaining tasks."""
    asyncio.set_event_loop(loop)
    try:
        try:
            loop.run_until_complete(story)
        except RuntimeError:
            if loop.broke is None:
                raise
        if loop.broke is not None:
            raise loop.broke
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
