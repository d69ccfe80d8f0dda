"""Findings that rest on a value which a template or a script fills in later. Pure.

The rules read such a flag as absent. What they then say of its default need not be true of the command.
"""

from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.values import Knob

_LAYOUT = frozenset({"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"})
_OF_LAYOUT = frozenset({"weights_gib", "kv_tokens", "heads", "state_blocks"})
"""What a GPU holds, and how the model is split."""


def _is_number(knob: Knob) -> bool:
    facts = KNOBS.get(knob)
    return facts is not None and facts.type in ("int", "float")


def rests_on_open_value(finding: Finding, config: ServeConfig) -> bool:
    """Whether a flag that the finding changes or cites has no value yet, nor a start that shows it."""
    if config.start is not None:
        return False
    named = {*finding.to, *finding.evidence}
    open_knobs = {
        knob
        for knob, value in config.setting.items()
        if (knob in named or knob in _LAYOUT) and is_placeholder(value, number=_is_number(knob))
    }
    if config.gpus == 1 and (config.hosts or 1) == 1:
        open_knobs -= _LAYOUT  # the only layout of one GPU
    if open_knobs & _LAYOUT and (finding.rule.startswith("D") or named & _OF_LAYOUT):
        return True
    return bool(open_knobs & named)
