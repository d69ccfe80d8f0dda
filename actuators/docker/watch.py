"""Watch a container until its server is gone, and tell on the way whenever it falls silent.

Docker's daemon may go and come back meanwhile: that says nothing of the server, which is asked over HTTP.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from actuators.docker.client import DockerClient
from actuators.docker.exit_diagnosis import (
    ObservedEvents,
    fate,
    hearing,
    last_lines,
    starts_again,
    told,
    why_silent,
)
from actuators.docker.spec import ContainerSpec
from actuators.vllm.probe import OpenAiProbe
from agent.domain.errors import ActError

_LOOK_S = 5.0  # at the latest, though nothing is heard
_BACK_WITHIN_S = 5.0  # of a `docker restart`, from the end to the start; not until the server is ready
_POLL_S = 0.25
_SURE = 3  # missed probes that do for one whose container is seen to be paused or cut off

Say = Callable[[str, tuple[str, ...]], None]


@dataclass(slots=True, kw_only=True)
class Watch:
    """One container, by its id. `address`: where its server was reached when it was launched."""

    client: DockerClient
    container: str
    address: str
    every_s: float
    timeout_s: float
    misses: int
    silent: Say  # told once each time that it does not answer any more
    returns: Callable[[], bool]  # whether somebody else may start it again, to the same address: no loss
    _first: ContainerSpec | None = field(default=None, init=False)
    _started: str = field(default="", init=False)  # when it was started, as far as was told
    _log: tuple[str, ...] = field(default=(), init=False)  # a removed container takes its log along
    _away: bool = field(default=False, init=False)  # Docker's daemon did not answer the last look

    async def until_gone(self) -> tuple[str, tuple[str, ...]]:
        """How it went, and its last lines."""
        async with hearing(self.client, self.container) as heard:
            asking = asyncio.create_task(self._ask())
            try:
                return await self._look_on(heard)
            finally:
                asking.cancel()
                await asyncio.wait([asking])

    async def _look_on(self, heard: ObservedEvents) -> tuple[str, tuple[str, ...]]:
        while True:
            heard.news.clear()
            try:
                if (why := await self._look(heard)) is not None:
                    return why + (" (Docker's daemon was away meanwhile)" if self._away else ""), self._log
                self._away = False
            except ActError:  # it will be told when it is back
                self._away = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await heard.news.wait()

    async def _look(self, heard: ObservedEvents) -> str | None:
        """Why it is gone; None while it is not. Raises ActError when the Engine does not answer."""
        now = await self.client.inspect(self.container)
        if self._first is None and now is not None:
            self._first, self._started = now, now.state.started_at
        if not _up(now):
            await told(heard)
            now = await self._back(heard)
        if now is not None:
            self._log = await last_lines(self.client, now) or self._log
        if now is None or self._first is None:
            return fate(now, heard, self._log)
        if self._anew(now):
            why = starts_again(now, heard, self._log, self._first.restart_count)
            return None if self._serves_again(now, why) else why
        if not _up(now):
            return fate(now, heard, self._log)
        if now.address and now.address != self.address:
            return f"was restarted by Docker: it is reached at {now.address} now, not at {self.address}"
        return None

    async def _ask(self) -> None:
        """Probe /health for ever. What is known to be paused or cut off need not be asked as often."""
        probe = OpenAiProbe(address=self.address)
        missed, said = 0, False
        while True:
            health = await probe.health(self.timeout_s)
            missed = missed + 1 if health.why else 0
            said = said and bool(missed)
            if not said and missed >= min(_SURE, self.misses):
                reason, here = await self._why_silent()
                if here and (missed >= self.misses or reason):
                    said = True
                    self.silent(f"is silent: {reason or health.why}, {missed} times in a row", self._log)
            await asyncio.sleep(self.every_s)

    async def _why_silent(self) -> tuple[str, bool]:
        """What its state tells of it, and whether it is there at all: if not, that is told elsewhere."""
        try:
            now = await self.client.inspect(self.container)
        except ActError:
            return "", True
        told_elsewhere = not _up(now) or (now is not None and self._anew(now))
        return why_silent(now), not told_elsewhere

    # Started again.

    async def _back(self, heard: ObservedEvents) -> ContainerSpec | None:
        """Its inspect, once it is known whether it ended for good: a `docker restart` begins as a stop."""
        now = await self.client.inspect(self.container)
        clock = asyncio.get_running_loop().time
        end_s = clock() + _BACK_WITHIN_S
        while now is not None and not _up(now) and not self._anew(now) and clock() < end_s:
            if not (heard.stopped and self.returns()):
                break
            await asyncio.sleep(_POLL_S)
            now = await self.client.inspect(self.container)
        return now

    def _serves_again(self, now: ContainerSpec, why: str) -> bool:
        """Or will: nothing was lost but its open requests. Told when it runs, or is about to."""
        if not self.returns() or now.address not in {"", self.address}:
            return False
        if _up(now) and not now.state.restarting:
            self._started = now.state.started_at
            self.silent(why, self._log)
        return True

    def _anew(self, now: ContainerSpec) -> bool:
        """Whether Docker has started it again, or is about to."""
        return now.state.restarting or now.state.started_at != self._started


def _up(spec: ContainerSpec | None) -> bool:
    return spec is not None and spec.state.running
