"""The time of one process: its seconds, and wall time that is monotonic while a rollout runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from math import ceil
from time import monotonic

import structlog

from flettner.agent.domain.ports import Now
from flettner.agent.domain.reading import SourceState
from flettner.agent.domain.state import Phase, State
from flettner.primitives.wall_clock import utc_now

STEP = timedelta(seconds=1)
"""A larger difference to the wall clock is one that was set; adjtime(2) moves both clocks."""
AT_REST = (Phase.OBSERVING, Phase.PROPOSED, Phase.HALTED)
SOURCE = "clock"
log = structlog.get_logger()


async def each_second(offset_s: float = 0.0) -> AsyncIterator[float]:
    """Yield once a second how late it is, s; the first time after a second less `offset_s`.

    Work and delays do not shift later seconds; seconds that pass meanwhile are left out.
    """
    clock = asyncio.get_running_loop().time
    due_s = clock() - offset_s
    while True:
        due_s += max(1, ceil(clock() - due_s))
        await asyncio.sleep(due_s - clock())
        yield clock() - due_s


class ProcessClock:
    """Gives the times of events and entries. A step of the wall clock waits until no target has a deadline.

    Deadlines are differences of these times, so that a clock which is set changes no deadline and no verdict.
    """

    def __init__(self, wall: Now = utc_now, elapsed_s: Callable[[], float] = monotonic) -> None:
        self._wall, self._elapsed_s = wall, elapsed_s
        self._ahead = timedelta()  # of the wall clock, as last logged
        self._base, self._base_s = wall(), elapsed_s()

    def now(self) -> datetime:
        return self._base + timedelta(seconds=self._elapsed_s() - self._base_s)

    def continue_after(self, at: datetime) -> None:
        """Go on from `at`, the last entry, if the wall clock was set back before it."""
        if at > self.now():
            self._base, self._base_s = at, self._elapsed_s()

    def follow(self, *, at_rest: bool) -> SourceState | None:
        """Take the wall clock's time, or stay; return what the status says if that changed."""
        ahead = self._wall() - self.now()
        if at_rest:
            self._base, self._base_s = self._wall(), self._elapsed_s()
        pending = timedelta() if at_rest else ahead
        if abs(pending - self._ahead) < STEP:
            return None
        log.warning("clock.set", by_s=round((ahead - self._ahead).total_seconds()), followed=at_rest)
        self._ahead = pending
        why = "" if at_rest else _describe(ahead)
        return SourceState(at=self.now(), source=SOURCE, available=abs(pending) < STEP, why=why)


def is_at_rest(state: State) -> bool:
    """Whether no deadline of the target is open. A rollout that advise mode suspends may go on later."""
    return state.phase in AT_REST and (state.mode == "advise" or state.effects.awaited is None)


def _describe(ahead: timedelta) -> str:
    way = "forward" if ahead > timedelta() else "back"
    return (
        f"the host's clock was set {way} by {abs(ahead).total_seconds():.0f} s; times follow it once no "
        f"rollout and no cooldown runs, so that no deadline changes"
    )
