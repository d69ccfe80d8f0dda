"""Let the server of a container sleep instead of ending it, and wake it again.

The container runs on with its weights in host memory. Its snapshot says that it sleeps before it does, so
that a daemon that starts meanwhile gives it no traffic. What fails here ends the container, as without sleep
mode.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from actuators.docker import capacity, snapshots, stop
from actuators.docker.capacity import Host
from actuators.docker.client import DockerClient
from actuators.docker.discovery import FoundContainer
from actuators.docker.exit_diagnosis import read_log_if_possible
from actuators.docker.log_head import read_start_log
from actuators.docker.spec import ContainerSpec
from actuators.vllm.probe import OpenAiProbe
from actuators.vllm.sleep_mode import SleepMode, why_unavailable
from agent.domain.errors import ActError
from agent.domain.ports import Site

Measure = Callable[[str, ContainerSpec], Awaitable[Host]]

_WEIGHTS = re.compile(rb"Model loading took ([0-9.]+) GiB")
_POLL_S = 1.0
_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepVerdict:
    """Whether the server can sleep. `why`: a clause with the numbers in it."""

    fits: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    client: DockerClient
    site: Site
    measure: Measure = capacity.measure_for
    free_within_s: float = 30.0  # the driver frees memory some time after the call has returned

    async def judge(self, spec: ContainerSpec) -> SleepVerdict:
        """Whether host memory has room for the weights beside one more server."""
        if why := why_unavailable(spec.serve.setting, spec.env):
            return SleepVerdict(fits=False, why=why)
        host = await self.measure(self.client.host, spec)
        if not host.gpus:
            return SleepVerdict(fits=False, why=f"the memory of its GPUs is not known: {host.why}")
        weights = await self._weights(spec, host)
        memory = None
        with suppress(ActError):
            memory = await self.client.memory(spec.id)
        return room_for_weights(spec.memory_limit, weights, memory, host)

    async def put_to_sleep(self, one: FoundContainer) -> str:
        """Return how much memory is free then. Raises ActError if it does not sleep or frees too little."""
        room = ""
        if not one.asleep:  # else a daemon that died has done this: its weights are in host memory
            verdict = await self.judge(one.spec)
            if not verdict.fits:
                raise ActError(verdict.why)
            room = f"; {verdict.why}"
        busy = await OpenAiProbe(address=one.spec.address).busy()
        if busy != 0:
            raise ActError("its open requests are unknown" if busy is None else f"{busy} requests are open")
        await stop.keep(self.client, self.site, one)
        snapshots.update(
            self.site, one.server, stopped=True, asleep=one.spec.state.started_at, epoch=self.site.epoch
        )
        await stop.disable_restarts(self.client, one)
        await SleepMode(one.spec.address).sleep()
        return f"{await self._wait_for_memory(one.spec)}{room}"

    async def wake(self, one: FoundContainer) -> bool:
        """Wake it, and return whether it slept.

        Raises ActError if it ended or does not wake; the next launch starts it.
        """
        kept = snapshots.read_snapshot(self.site, one.server)
        if kept is None or not kept.asleep or kept.id != one.id:
            return False
        if not one.active:
            snapshots.update(self.site, one.server, asleep="")
            log = await read_log_if_possible(self.client, one.spec)
            raise ActError(f"{one.server} ended while it slept: it is started instead", log)
        try:
            if one.asleep:  # else a third party has started it again
                await SleepMode(one.spec.address).wake()
        except ActError as error:
            log = await read_log_if_possible(self.client, one.spec)
            await stop.end(self.client, one, 0)
            snapshots.update(self.site, one.server, asleep="")
            raise ActError(f"{one.server} did not wake, and is started instead: {error.why}", log) from error
        snapshots.update(self.site, one.server, asleep="")
        return one.asleep

    async def _weights(self, spec: ContainerSpec, host: Host) -> float:
        """Bytes, as vLLM logged them for each GPU; else all that its GPUs hold, which is more."""
        lines = await read_start_log(self.client, spec)
        logged = [float(found[1]) for line in lines if (found := _WEIGHTS.search(line))]
        gpus = host.gpus or ()
        if logged:
            return max(logged) * len(gpus) * _GIB
        return sum((gpu.total_mib or 0) - (gpu.free_mib or 0) for gpu in gpus) * 1024**2

    async def _wait_for_memory(self, spec: ContainerSpec) -> str:
        """A server like it takes its share of each whole GPU, and refuses to start if that is not free."""
        share = capacity.utilization(spec.serve.setting)
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.free_within_s
        while True:
            gpus = (await self.measure(self.client.host, spec)).gpus or ()
            free = [(gpu.free_mib or 0.0, gpu.total_mib or 0.0) for gpu in gpus]
            if free and all(one >= share * total for one, total in free):
                return f"{min(one for one, _ in free) / 1024:.1f} GiB of GPU memory are free"
            if clock() > end_s:
                shown = ", ".join(f"{one / 1024:.1f} of {total / 1024:.1f} GiB" for one, total in free)
                raise ActError(f"asleep it leaves {shown or 'an unknown part'} free, {share:g} are needed")
            await asyncio.sleep(_POLL_S)


def room_for_weights(limit: int, weights: float, memory: int | None, host: Host) -> SleepVerdict:
    """`limit`: bytes that the container may hold; 0: no limit. `memory`: bytes that it holds now."""
    size = f"its {weights / _GIB:.1f} GiB of weights"
    if memory is None or host.memory is None:
        return SleepVerdict(fits=False, why="the free memory of the host is not known")
    if limit and limit - memory < weights:
        why = f"{size} exceed the {(limit - memory) / _GIB:.1f} GiB that its memory limit leaves"
        return SleepVerdict(fits=False, why=why)
    spare = capacity.spare_memory(host)
    green = capacity.expected_memory(limit, memory)
    numbers = f"{spare / _GIB:.1f} GiB to spare, {green / _GIB:.1f} GiB of them for the new server"
    if weights + green > spare:
        return SleepVerdict(fits=False, why=f"{size} do not fit into host memory: {numbers}")
    return SleepVerdict(fits=True, why=f"{size} are in host memory, which has {numbers}")
