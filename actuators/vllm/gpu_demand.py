"""Compute the share of the GPUs that a server of a setting takes. Pure."""

from flettner.vllm_facts.values import Setting, as_number

_UTILIZATION = 0.92  # vLLM's default since 0.20, its highest so far
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")


def gpus_needed(setting: Setting) -> int:
    """Return the number of GPUs that a server of this setting takes."""
    needed = _count(setting, "data_parallel_size_local") or _count(setting, "data_parallel_size") or 1
    for knob in _RANKS:
        needed *= _count(setting, knob) or 1
    return needed


def utilization(setting: Setting) -> float:
    """Return the share that it takes of each of them."""
    value = setting.get("gpu_memory_utilization")
    number = as_number(value)
    return _UTILIZATION if number is None else number


def _count(setting: Setting, knob: str) -> int:
    value = setting.get(knob)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
