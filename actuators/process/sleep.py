"""Let the server of a process sleep instead of ending it, and wake it again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flettner.actuators.host import memory as host_memory
from flettner.actuators.host import procfs
from flettner.actuators.host.cgroup import find_room
from flettner.actuators.host.memory import GpuMemory, Host, expected_memory, find_gpu, spare_memory
from flettner.actuators.host.origin import VISIBLE_GPUS, setting_of
from flettner.actuators.host.procfs import Process
from flettner.actuators.process import stopped
from flettner.actuators.process.start_log import read_lines
from flettner.actuators.vllm import sleep
from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.actuators.vllm.sleep import FREE_WITHIN_S, ServerMemory, Sleepable, SleepMode, SleepVerdict
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.values import Setting

_START_BYTES = 1 << 20  # of a log: vLLM writes a few hundred lines until it serves


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server's process. `log`: its file, and the byte at which its start began; None: not known."""

    name: str
    address: str
    process: Process
    log: tuple[Path, int] | None = None

    @property
    def setting(self) -> Setting:
        return setting_of(procfs.words(self.process.pid))

    @property
    def env(self) -> Mapping[str, str]:
        return procfs.environment(self.process.pid)


Measure = Callable[[RunningServer], Awaitable[Host]]


async def measure_for(server: RunningServer) -> Host:
    """Measure the host, or this daemon's control group if that leaves less: servers start in it."""
    free, total = await asyncio.gather(host_memory.free_memory(), host_memory.total_memory())
    hosts = [Host(memory=free, memory_total=total)]
    if room := find_room():
        hosts.append(Host(memory=room.free, memory_total=room.limit))
    tightest = hosts[0] if free is None else min(hosts, key=spare_memory)
    try:
        gpus = gpus_of(server.env, server.setting, await host_memory.gpus())
        why = f"nvidia-smi does not show all that it takes ({VISIBLE_GPUS})"
    except ActError as error:
        gpus, why = None, error.why
    return Host(memory=tightest.memory, memory_total=tightest.memory_total, gpus=gpus, why=why)


def visible_gpus(env: Mapping[str, str], host_gpus: Sequence[GpuMemory]) -> list[str]:
    """The names of the GPUs that a server with this environment sees."""
    visible = env.get(VISIBLE_GPUS)
    return (
        [str(gpu.index) for gpu in host_gpus]
        if visible is None
        else [name.strip() for name in visible.split(",")]
    )


def gpus_of(
    env: Mapping[str, str], setting: Setting, host_gpus: Sequence[GpuMemory]
) -> tuple[GpuMemory, ...] | None:
    """Return the GPUs of a server, the first that it sees; None if one of them is unknown."""
    needed = gpus_needed(setting)
    own_gpus = [find_gpu(name, host_gpus) for name in visible_gpus(env, host_gpus)[:needed]]
    gpus = tuple(gpu for gpu in own_gpus if gpu is not None and gpu.free_mib is not None)
    return gpus if len(gpus) == needed else None


async def _measure_memory(server: RunningServer) -> ServerMemory | None:
    held = await asyncio.to_thread(procfs.memory_of_family, server.process)
    room = find_room(server.process.pid)
    if held is None:
        return None
    return ServerMemory(room=room.free if room else None, next=expected_memory(0, held))


def _read_start(log: tuple[Path, int] | None) -> Sequence[bytes]:
    return read_lines(*log, _START_BYTES) if log else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    site: Site
    measure: Measure = measure_for
    free_within_s: float = FREE_WITHIN_S

    async def judge(self, server: RunningServer) -> SleepVerdict:
        return await sleep.judge(self._sleepable(server))

    async def put_to_sleep(self, server: RunningServer) -> str:
        """Return how much memory is free then. Raises ActError if it does not sleep or frees too little."""

        async def prepare() -> None:
            stopped.write_asleep(self.site, server.name, server.process)

        return await sleep.put_to_sleep(
            self._sleepable(server),
            prepare,
            asleep=stopped.is_asleep(self.site, server.name, server.process),
            free_within_s=self.free_within_s,
        )

    async def wake(self, name: str, server: RunningServer | None) -> bool:
        """Wake the server of this name, and return whether it slept.

        `server`: its process; None if it ended. Raises ActError if it ended or does not wake; the next launch
        starts it.
        """
        note = stopped.read_note(self.site, name)
        if note is None or not note.sleeps:
            return False
        if server is None:
            raise ActError(f"{name} ended while it slept: it is started instead")
        if not note.names(server.process):  # a third party has started it again
            return False
        try:
            await SleepMode(server.address).wake()
        except ActError as error:
            raise ActError(f"{name} did not wake, and is started instead: {error.why}") from error
        return True

    def _sleepable(self, server: RunningServer) -> Sleepable:
        return Sleepable(
            address=server.address,
            setting=server.setting,
            env=server.env,
            host=partial(self.measure, server),
            memory=partial(_measure_memory, server),
            start_log=partial(asyncio.to_thread, _read_start, server.log),
        )
