"""Whether the GPUs of a running server have the memory for one more beside it, or others are free.

vLLM takes its share of each GPU at once, and refuses to start if that much is not free
(vllm/v1/worker/utils.py: request_memory). What other programs hold is in nvidia-smi's numbers; what servers
of flettner claim may not be there yet, because they load.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from flettner.actuators.host import memory as host_memory
from flettner.actuators.host import ownership_env, procfs
from flettner.actuators.host.memory import GpuMemory
from flettner.actuators.host.origin import setting_of
from flettner.actuators.process.sleep import RunningServer, gpus_of, visible_gpus
from flettner.actuators.vllm.gpu_demand import gpus_needed, utilization
from flettner.actuators.vllm.gpu_placement import Placement, place
from flettner.agent.domain.errors import ActError
from flettner.vllm_facts.values import Setting

_MIB_IN_GIB = 1024
_ON_GPU = "/dev/nvidia[0-9]*"


@dataclass(frozen=True, slots=True)
class Claim:
    """The share of each of its GPUs that a server takes."""

    name: str
    env: Mapping[str, str]
    setting: Setting

    def shares(self, gpu: GpuMemory, host_gpus: Sequence[GpuMemory]) -> float | None:
        """None if it is on other GPUs."""
        return (
            utilization(self.setting) if gpu in (gpus_of(self.env, self.setting, host_gpus) or ()) else None
        )


async def find_shortage(blue: RunningServer, env: Mapping[str, str], setting: Setting) -> str:
    """Why no server with this environment and setting starts beside `blue`; empty if it may, or unknown."""
    if (host_gpus := await _find_host_gpus(blue)) is None:
        return ""
    claims = await asyncio.to_thread(lambda: [_claim_of(blue), *_list_claims(blue)])
    return describe_shortage(Claim("", env, setting), claims, host_gpus)


async def find_placement(blue: RunningServer, setting: Setting) -> Placement | None:
    """The GPUs for a server of another layout than `blue`; None if they are not known."""
    if (host_gpus := await _find_host_gpus(blue)) is None:
        return None
    own = await asyncio.to_thread(_claim_of, blue)
    others = await asyncio.to_thread(lambda: list(_list_claims(blue)))
    return place_beside(own, others, setting, host_gpus)


def place_beside(
    own: Claim, others: Iterable[Claim], setting: Setting, host_gpus: Sequence[GpuMemory]
) -> Placement | None:
    """`others`: the other servers of this host; one that loads has its GPUs, too."""
    of_server = gpus_of(own.env, own.setting, host_gpus)
    if of_server is None:
        return None
    taken = [gpu for claim in others for gpu in gpus_of(claim.env, claim.setting, host_gpus) or ()]
    return place(setting, [str(gpu.index) for gpu in of_server], [*of_server, *taken], host_gpus)


async def _find_host_gpus(blue: RunningServer) -> Sequence[GpuMemory] | None:
    """None for a server that has no GPU open, as a simulator, or where nvidia-smi does not run."""
    if not await asyncio.to_thread(procfs.has_open, blue.process, _ON_GPU):
        return None
    try:
        return await host_memory.gpus()
    except ActError:
        return None


def describe_shortage(wanted: Claim, claims: Sequence[Claim], host_gpus: Sequence[GpuMemory]) -> str:
    """Compare the GPUs with those that it sees; the share with what is free, and what other servers leave."""
    needed, seen = gpus_needed(wanted.setting), len(visible_gpus(wanted.env, host_gpus))
    if needed > seen and not _spans_hosts(wanted.setting):
        return f"this setting needs {needed} GPUs, and the server sees {seen}: request at most {seen}"
    share = utilization(wanted.setting)
    for gpu in gpus_of(wanted.env, wanted.setting, host_gpus) or ():
        if gpu.sliced or gpu.free_mib is None or not gpu.total_mib:
            continue
        here = {claim.name: of for claim in claims if (of := claim.shares(gpu, host_gpus)) is not None}
        left = min(gpu.free_mib / gpu.total_mib, round(1 - sum(here.values()), 6))
        if share <= left:
            continue
        others = ", ".join(f"{name} ({of:g})" for name, of in here.items())
        fits = floor(100 * left) / 100
        fix = f"a share of {fits:g} would fit, or " if fits > 0 else ""
        return (
            f"GPU {gpu.index} has {_gib(gpu.free_mib)} of {_gib(gpu.total_mib)} GiB free beside {others}, "
            f"and a server with gpu_memory_utilization = {share:g} takes {_gib(share * gpu.total_mib)} GiB "
            f'at once, so it would not start: {fix}end another server there, or write strategy = "swap"'
        )
    return ""


def _spans_hosts(setting: Setting) -> bool:
    return setting.get("distributed_executor_backend") == "ray" or setting.get("nnodes", 1) != 1


def _claim_of(server: RunningServer) -> Claim:
    return Claim(server.name, server.env, server.setting)


def _list_claims(blue: RunningServer) -> Iterable[Claim]:
    """The other servers of all daemons on this host."""
    for name, process, env in ownership_env.first_processes():
        if process.pid != blue.process.pid:
            yield Claim(name, env, setting_of(procfs.words(process.pid)))


def _gib(mib: float) -> str:
    return f"{mib / _MIB_IN_GIB:.1f}"
