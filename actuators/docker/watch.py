"""Watch a container until its server is gone, and report when the server stops answering.

An outage of the Docker daemon says nothing about the server, which is probed over HTTP.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.exit_diagnosis import (
    ObservedEvents,
    describe_exit,
    describe_restart,
    observe_events,
    wait_for_last_event,
    was_ended_from_outside,
)
from flettner.actuators.vllm.fault import Fault, Report
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError

_LOOK_S = 5.0  # between two looks, without an event
_BACK_WITHIN_S = 5.0  # the gap of a `docker restart`, from the end to the start
_POLL_S = 0.25
_SURE = 3  # failed probes in a row that suffice if the container is paused or disconnected


@dataclass(slots=True, kw_only=True)
class Watch:
    """The watch of one container, by its id. `address`: that of its server when it was launched."""

    client: DockerClient
    container: str
    address: str
    every_s: float
    timeout_s: float
    misses: int
    report: Report  # called once each time that the server stops answering
    adopted: bool  # any restart at the same address is no loss
    was_ended: Callable[[], bool]  # by flettner
    _first: Container | None = field(default=None, init=False)
    _started: str = field(default="", init=False)  # time of the last start that was reported
    _log: tuple[str, ...] = field(default=(), init=False)  # the log is removed with the container
    _away: bool = field(default=False, init=False)  # the Docker daemon did not answer the last look

    async def until_gone(self) -> tuple[Fault, tuple[str, ...]]:
        """Return how the server ended, and its last log lines."""
        async with observe_events(self.client, self.container) as observed:
            asking = asyncio.create_task(self._probe_health())
            try:
                return await self._watch_container(observed)
            finally:
                asking.cancel()
                await asyncio.wait([asking])

    async def _watch_container(self, observed: ObservedEvents) -> tuple[Fault, tuple[str, ...]]:
        while True:
            observed.changed.clear()
            try:
                if (fault := await self._check(observed)) is not None:
                    away = Fault(f"{fault.why} (the Docker daemon was away meanwhile)", external=True)
                    return away if self._away else fault, self._log
                self._away = False
            except ActError:
                self._away = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await observed.changed.wait()

    async def _check(self, observed: ObservedEvents) -> Fault | None:
        """Return why it is gone; None if it is not. Raises ActError if the Engine does not answer."""
        now = await self.client.inspect(self.container)
        if self._first is None and now is not None:
            self._first, self._started = now, now.state.started_at
        if not _up(now):
            await wait_for_last_event(observed)
            now = await self._wait_for_restart(observed)
        if now is not None:
            self._log = await self.client.read_log_if_possible(now) or self._log
        if now is None or self._first is None:
            return self._exit_of(now, observed)
        if self._was_restarted(now):
            why = describe_restart(now, observed, self._log, self._first.restart_count)
            by_policy = now.restart_count > self._first.restart_count
            fault = Fault(why, external=not by_policy)
            return None if self._recovers(now, fault) else fault
        if not _up(now):
            return self._exit_of(now, observed)
        if now.address and now.address != self.address:
            why = f"was restarted by Docker: its address is {now.address} now, not {self.address}"
            return Fault(why, external=True)
        return None

    def _exit_of(self, now: Container | None, observed: ObservedEvents) -> Fault:
        why = describe_exit(now, observed, self._log)
        return Fault(why, external=was_ended_from_outside(now, observed))

    async def _probe_health(self) -> None:
        """Probe /health for ever. A paused or disconnected container needs fewer failed probes."""
        probe = OpenAiProbe(address=self.address)
        missed, reported = 0, False
        while True:
            health = await probe.health(self.timeout_s)
            missed = missed + 1 if health.why else 0
            reported = reported and bool(missed)
            if not reported and missed >= min(_SURE, self.misses):
                reason, external, here = await self._describe_silence()
                if here and (missed >= self.misses or reason):
                    reported = True
                    why = f"failed its health check {missed} times in a row: {reason or health.why}"
                    self.report(Fault(why, external=external), self._log, gone=False)
            await asyncio.sleep(self.every_s)

    async def _describe_silence(self) -> tuple[str, bool, bool]:
        """Return the reason that its state names, whether that lies outside the server, and whether it is up.

        If it is not up, _check reports it.
        """
        try:
            now = await self.client.inspect(self.container)
        except ActError:
            return "", False, True
        if now is None or not now.state.running or self._was_restarted(now):
            return "", False, False
        return now.silence, now.state.paused or now.disconnected, True

    # Started again.

    async def _wait_for_restart(self, observed: ObservedEvents) -> Container | None:
        """Return the container once it is known whether it ended for good: a restart begins as a stop."""
        now = await self.client.inspect(self.container)
        clock = asyncio.get_running_loop().time
        end_s = clock() + _BACK_WITHIN_S
        while now is not None and not _up(now) and not self._was_restarted(now) and clock() < end_s:
            if not (observed.stopped and self._may_restart(now)):
                break
            await asyncio.sleep(_POLL_S)
            now = await self.client.inspect(self.container)
        return now

    def _recovers(self, now: Container, fault: Fault) -> bool:
        """Whether it serves again, or will: only its open requests are lost. Reported once it runs."""
        crashed = not self.adopted and not fault.external
        if crashed or not self._may_restart(now) or now.address not in {"", self.address}:
            return False
        if _up(now) and not now.state.restarting:
            self._started = now.state.started_at
            self.report(fault, self._log, gone=False)
        return True

    def _may_restart(self, now: Container) -> bool:
        """Whether Docker starts it again: a green has no restart policy, and gets one with its promotion."""
        return not self.was_ended() and (self.adopted or now.restarts)

    def _was_restarted(self, now: Container) -> bool:
        """Whether Docker has started it again, or is about to."""
        return now.state.restarting or now.state.started_at != self._started


def _up(spec: Container | None) -> bool:
    return spec is not None and spec.state.running
