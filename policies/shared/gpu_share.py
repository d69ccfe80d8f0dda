"""The share of GPU memory that vLLM reserves, and the share in use."""

from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import read_number
from flettner.vllm_facts.knobs import find_default_number, release_of

SHARE = "gpu_memory_utilization"


def find_memory_share(reading: Reading, context: Context) -> float | None:
    """The effective gpu_memory_utilization.

    As given, as reported by the server, or vLLM's default; None if unknown.
    """
    given = read_number(context.setting, SHARE)
    if given is not None:
        return given
    try:
        return float(reading.facts[SHARE])
    except (KeyError, ValueError):
        version = reading.facts.get("version")
    return None if release_of(version) is None else find_default_number(SHARE, version)


def find_used_share(reading: Reading) -> float | None:
    """Used share of memory of the fullest GPU; None if a driver does not report it."""
    shares = [
        gpu.memory_used_mib / gpu.memory_total_mib
        for gpu in reading.gpus
        if gpu.memory_used_mib is not None and gpu.memory_total_mib
    ]
    return max(shares) if shares and len(shares) == len(reading.gpus) else None
