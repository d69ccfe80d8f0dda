"""Thresholds of vLLM's own defaults (vllm/engine/arg_utils.py: get_batch_defaults)."""

from flettner.vllm_facts.values import Knob, Setting

BIG_GIB = 70  # of a GPU, above which vLLM chooses larger batches


def positive_int(setting: Setting, knob: Knob) -> int | None:
    """The knob's value if it is an integer above 0, else None."""
    value = setting.get(knob)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
