"""The memory of the host that the flags of a server ask for, beside what every server takes. Pure.

vLLM allocates it at its start, pinned: where it is not there the kernel ends processes, the server in force
among them.
"""

from collections.abc import Iterator

from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.vllm_facts.values import Knob, Setting, as_number

_GIB = 1024**3
_WHOLE, _PER_GPU, _PER_PROCESS = "kv_offloading_size", "cpu_offload_gb", "mm_processor_cache_gb"


def host_memory_needed(setting: Setting) -> int:
    """Bytes; 0: no flag asks for any."""
    return int(sum(gib for _, gib in _demands(setting)) * _GIB)


def describe_host_shortage(setting: Setting, at_most: int | None, where: str) -> str:
    """Why a server of this setting has too little host memory, with the fix; empty: it may have enough.

    `at_most`: bytes, None if they are not known; `where`: whose they are, as "this host has".
    """
    needed = host_memory_needed(setting)
    if not needed or at_most is None or needed <= at_most:
        return ""
    asked = " and ".join(f"{knob} = {setting[knob]}" for knob, _ in _demands(setting))
    return (
        f"{asked} takes {needed / _GIB:.1f} GiB of host memory, and {where} {at_most / _GIB:.1f} GiB: "
        "request less"
    )


def _demands(setting: Setting) -> Iterator[tuple[Knob, float]]:
    """GiB that each given flag asks for."""
    for knob, copies in (
        (_WHOLE, 1),
        (_PER_GPU, gpus_needed(setting)),
        (_PER_PROCESS, _processes(setting)),
    ):
        if gib := as_number(setting.get(knob)):
            yield knob, gib * copies


def _processes(setting: Setting) -> int:
    """API servers and copies of the engine, each with a cache of its own."""
    engines = as_number(setting.get("data_parallel_size")) or 1
    return int((as_number(setting.get("api_server_count")) or 1) + engines)
