"""Choose the GPUs of a green whose layout takes another number of them than the server in force. Pure.

On GPUs that it shared nothing could be compared, so green gets GPUs that nobody uses, or those of the server
whose slot it takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flettner.actuators.host.memory import GpuMemory
from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.agent.machine.strategy import HostCapacity
from flettner.vllm_facts.values import GPUS, Knob, Setting, Value

_UNUSED = 0.95  # of the memory of a GPU, that is free where no program uses it: the driver takes a part
_LAYOUT = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`own`: GPUs of the server in force. `unused`: those of the host that nobody uses. All by name."""

    needed: int
    own: tuple[str, ...]
    unused: tuple[str, ...]
    host: int  # the GPUs of the host

    @property
    def capacity(self) -> HostCapacity:
        """Whether green finds GPUs beside the servers that run."""
        free = f"{len(self.unused)} of the host's {self.host} GPUs are free"
        listed = f" ({', '.join(self.unused)})" if self.unused else ""
        takes = f"this layout takes {self.needed} GPU{'s' if self.needed > 1 else ''}"
        return HostCapacity(free=len(self.unused) >= self.needed, why=f"{takes}, and {free}{listed}")

    @property
    def shortage(self) -> str:
        """Why green does not even find GPUs in the slot of the server in force; empty: it does."""
        have = len(self.own) + len(self.unused)
        if self.needed <= have:
            return ""
        return (
            f"this setting needs {self.needed} GPUs, and the server has {len(self.own)} while "
            f"{len(self.unused)} more are free: request at most {have}"
        )

    def resolve(self, *, beside: bool) -> Mapping[Knob, tuple[Value, Value]]:
        """Present and new GPUs, as in PreflightResult.resolved; empty: green gets those of its like."""
        if beside:
            gpus = self.unused[: self.needed]
        elif self.needed > len(self.own):
            gpus = (*self.own, *self.unused)[: self.needed]
        else:
            return {}
        return {GPUS: (",".join(self.own), ",".join(gpus))}


def changes_layout(before: Setting, after: Setting) -> bool:
    return any((before.get(knob) or 1) != (after.get(knob) or 1) for knob in _LAYOUT)


def place(
    setting: Setting, own: Sequence[str], taken: Sequence[GpuMemory], host_gpus: Sequence[GpuMemory]
) -> Placement:
    """`own`: names of the GPUs of the server in force. `taken`: GPUs that servers have, whether they use them
    yet or not.
    """
    unused = [str(gpu.index) for gpu in host_gpus if gpu not in taken and _is_unused(gpu)]
    needed = gpus_needed(setting)
    return Placement(needed=needed, own=tuple(own), unused=tuple(unused), host=len(host_gpus))


def _is_unused(gpu: GpuMemory) -> bool:
    if gpu.sliced or gpu.free_mib is None or not gpu.total_mib:
        return False
    return gpu.free_mib >= _UNUSED * gpu.total_mib
