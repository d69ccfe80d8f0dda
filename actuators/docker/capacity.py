"""Measure the memory that containers hold, and the capacity of the host for one more of them.

Green is made exactly like a server that runs: with the same GPUs, the same CPUs, the same memory limit. So
there is room for it where those have some left, and not on other GPUs that happen to be free, unless it has
another layout.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container, Gpus
from flettner.actuators.host import memory as host_room
from flettner.actuators.host.memory import GpuMemory, Host, expected_memory, find_gpu, spare_memory
from flettner.actuators.vllm.gpu_demand import gpus_needed, utilization
from flettner.actuators.vllm.gpu_placement import Placement, changes_layout, place
from flettner.actuators.vllm.host_demand import describe_host_shortage, host_memory_needed
from flettner.agent.domain.errors import ActError
from flettner.agent.machine.strategy import HostCapacity
from flettner.vllm_facts.values import Setting

_GIB = 1024**3
_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The memory that a container holds, and the share that vLLM takes of its GPUs."""

    name: str
    gpus: Gpus
    cpus: str  # "0-3,8"; empty: not pinned
    limit: int  # bytes; 0: none
    memory: int | None  # bytes held now, without a limit; None: not known
    utilization: float


async def measure_host(client: DockerClient, blues: Sequence[Container]) -> Host:
    """Measure the free memory of the host, and of its GPUs if a container has any."""
    if not client.is_local:
        return Host(why=f"the Engine is on another host, {client.address}")
    free, total = await asyncio.gather(host_room.free_memory(), host_room.total_memory())
    if not any(blue.gpus.any for blue in blues):
        return Host(memory=free, memory_total=total, why="no server has a GPU")
    try:
        return Host(memory=free, memory_total=total, gpus=await host_room.gpus())
    except ActError as error:
        return Host(memory=free, memory_total=total, why=error.why)


async def measure_for(client: DockerClient, container: Container) -> Host:
    """Measure the host with the GPUs of this container alone; without GPUs if one of them is unknown."""
    host = await measure_host(client, [container])
    own = _gpus_on_host(container.gpus, host.gpus or ())
    gpus = tuple(gpu for gpu in own.values() if gpu is not None)
    if container.gpus.unknown or len(gpus) < len(own) or any(gpu.free_mib is None for gpu in gpus):
        return replace(
            host, gpus=None, why=container.gpus.unknown or "nvidia-smi does not report all of them"
        )
    return replace(host, gpus=gpus)


async def measure_holding(blue: Container, client: DockerClient, setting: Setting) -> Holding:
    """Measure a container that runs with `setting`; its memory only if it has no limit."""
    measured = None
    if not blue.memory_limit:
        with suppress(ActError):
            measured = await client.memory(blue.id)
    return Holding(
        name=blue.name,
        gpus=blue.gpus,
        cpus=blue.cpus,
        limit=blue.memory_limit,
        memory=measured,
        utilization=utilization(setting),
    )


def free_capacity(
    held: Sequence[Holding], setting: Setting, host: Host, placement: Placement | None = None
) -> HostCapacity:
    """Whether the host has capacity for one more like these, with this setting. Unknown is no capacity.

    `placement`: of a server that gets other GPUs than these.
    """
    verdicts = [*chain.from_iterable(_capacity_like(blue, held, setting, host, placement) for blue in held)]
    if not verdicts:
        return HostCapacity(free=None, why="there is no server to make it like")
    for verdict in (False, None):
        for capacity in verdicts:
            if capacity.free is verdict:
                return capacity
    return HostCapacity(free=True, why="; ".join(dict.fromkeys(capacity.why for capacity in verdicts)))


def find_placement(held: Sequence[Holding], before: Setting, after: Setting, host: Host) -> Placement | None:
    """The GPUs for a container of another layout than the last of these; None: of the same, or unknown."""
    blue = held[-1]
    if not changes_layout(before, after) or host.gpus is None or blue.gpus.unknown or not blue.gpus.any:
        return None
    own = list(_gpus_on_host(blue.gpus, host.gpus).items())[: gpus_needed(before)]
    taken = [gpu for each in held for gpu in _gpus_on_host(each.gpus, host.gpus).values() if gpu is not None]
    if any(each.gpus.all for each in held):
        taken = [gpu for _, gpu in own if gpu is not None]
    return place(after, [name for name, _ in own], taken, host.gpus)


def gpu_shortage(blue: Container, setting: Setting, host: Host) -> str:
    """Return why the container has too few GPUs for the setting, with the fix; empty: it may have enough."""
    gpus, needed = blue.gpus, gpus_needed(setting)
    have = len(host.gpus) if gpus.all and host.gpus is not None else len(gpus.ids)
    if not gpus.any or gpus.unknown or (gpus.all and host.gpus is None) or needed <= have:
        return ""
    return (
        f"this setting needs {needed} GPUs, and {blue.name} has {have}: start it with more of them (--gpus)"
    )


def host_shortage(blue: Container, setting: Setting, host: Host) -> str:
    """Why no container like this has the host memory that the flags ask for; empty: it may have it."""
    of_host = describe_host_shortage(setting, host.memory_total, "this host has")
    return of_host or describe_host_shortage(
        setting, blue.memory_limit or None, f"{blue.name} has a limit of"
    )


def _capacity_like(
    blue: Holding,
    held: Sequence[Holding],
    setting: Setting,
    host: Host,
    placement: Placement | None,
) -> list[HostCapacity]:
    capacities = []
    if blue.cpus:
        why = f"a server like {blue.name} is pinned to its CPUs {blue.cpus}, which {blue.name} uses"
        capacities.append(HostCapacity(free=False, why=why))
    if placement is not None:
        capacities.append(placement.capacity)
    elif blue.gpus.any:
        capacities += _gpu_capacity(blue, held, setting, host)
    return [*capacities, _memory_capacity(blue, setting, host)]


def _memory_capacity(blue: Holding, setting: Setting, host: Host) -> HostCapacity:
    needed = blue.limit or (
        None if blue.memory is None else max(expected_memory(0, blue.memory), host_memory_needed(setting))
    )
    if host.memory is None:
        return HostCapacity(free=None, why=f"the host's free memory is not known: {host.why}")
    if needed is None:
        why = f"the memory that {blue.name} needs is not known: set a limit (docker run --memory)"
        return HostCapacity(free=None, why=why)
    left = spare_memory(host)
    by = "its limit" if blue.limit else "by what it has now"
    if needed == host_memory_needed(setting):
        by = "by its flags"
    why = f"a server like {blue.name} may need {_size(needed)} ({by}), the host has {_size(left)} to spare"
    return HostCapacity(free=needed <= left, why=why)


def _gpu_capacity(blue: Holding, held: Sequence[Holding], setting: Setting, host: Host) -> list[HostCapacity]:
    if blue.gpus.unknown:
        return [
            HostCapacity(free=None, why=f"the GPUs of {blue.name} cannot be identified: {blue.gpus.unknown}")
        ]
    if host.gpus is None:
        return [HostCapacity(free=None, why=f"the free memory of the GPUs is not known: {host.why}")]
    taken = _gpus_on_host(blue.gpus, host.gpus)
    missing = [name for name, gpu in taken.items() if gpu is None]
    if missing or not taken:
        why = f"{blue.name} has GPU {', '.join(missing) or 'all'}, which nvidia-smi does not show"
        return [HostCapacity(free=None, why=why)]
    gpus = [gpu for gpu in taken.values() if gpu is not None][: gpus_needed(setting)]
    return [_one_gpu_capacity(gpu, held, utilization(setting), host.gpus) for gpu in gpus]


def _one_gpu_capacity(
    gpu: GpuMemory, held: Sequence[Holding], share: float, gpus: Sequence[GpuMemory]
) -> HostCapacity:
    """VLLM takes its share of the whole GPU at once, and refuses to start if that much is not free."""
    if gpu.free_mib is None or not gpu.total_mib or gpu.sliced:
        what = "is sliced (MIG)" if gpu.sliced else "does not report its free memory"
        return HostCapacity(free=None, why=f"GPU {gpu.index} {what}")
    here_too = [blue for blue in held if gpu in _gpus_on_host(blue.gpus, gpus).values()]
    claimed = sum(blue.utilization for blue in here_too)
    needed = share * gpu.total_mib
    why = (
        f"GPU {gpu.index}, which a new server has to share with {', '.join(blue.name for blue in here_too)}, "
        f"has {_size(gpu.free_mib * _MIB)} of {_size(gpu.total_mib * _MIB)} free, and gpu_memory_utilization "
        f"= {share:g} takes {_size(needed * _MIB)}"
    )
    if claimed + share > 1:
        return HostCapacity(free=False, why=f"{why} in addition to the {claimed:g} of those")
    return HostCapacity(free=needed <= gpu.free_mib, why=why)


def _gpus_on_host(gpus: Gpus, host_gpus: Sequence[GpuMemory]) -> Mapping[str, GpuMemory | None]:
    """Map to the GPUs of the host, in the order in which the container sees them."""
    if gpus.all:
        return {str(gpu.index): gpu for gpu in host_gpus}
    return {name: find_gpu(name, host_gpus) for name in gpus.ids}


def _size(number: float) -> str:
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number / _MIB:.0f} MiB"
