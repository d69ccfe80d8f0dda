"""How vLLM's argument parser reads each flag: number and type of its values, and other names of the flag.

Flags of the newest release come from its table, older and newer ones from the catalogue and the list of
removed flags, so that the command lines of all these releases can be read.
"""

from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases import TABLE

ALIASES = {alias: name for name, flag in TABLE.items() for alias in flag.aliases} | {
    "kv_cache_memory": "kv_cache_memory_bytes"  # as vLLM's log suggests it
}
"""Other names of a flag."""

SHORT = {short: name for name, flag in TABLE.items() for short in flag.short} | {"O": "optimization_level"}
"""The single-dash names. vLLM rewrites -O3 before its parser sees it."""

SWITCHES = frozenset(name for name, flag in TABLE.items() if flag.type == "bool").union(
    (name for name, facts in KNOBS.items() if facts.type == "bool"),
    (name for name, flag in RENAMED.items() if flag.switch),
    {"use_gpu_for_pooling_score"},  # of releases between 0.11 and 0.32
)
"""Flags without a value."""

ONE_WAY = frozenset(name for name, flag in TABLE.items() if flag.one_way)
"""Switches without a `--no-` form: off is to leave them out."""

SEVERAL = frozenset(name for name, flag in TABLE.items() if flag.several).union(
    name for name, facts in KNOBS.items() if facts.type == "list"
) - {"api_key"}
"""Flags that take one value or more. `--api-key` takes several too, of which clients need one."""

SIZES = frozenset(name for name, flag in TABLE.items() if flag.type == "size")
"""Flags that understand 8k = 8000 and 8K = 8192."""

TEXTS = frozenset(name for name, flag in TABLE.items() if flag.type == "text" and not flag.choices)
"""Flags whose value stays text even when it looks like a number."""

NAMES = frozenset(TABLE) | ALIASES.keys()
"""The flags of the newest release, with their other names."""


def is_switch(knob: str) -> bool:
    """Whether the flag takes no value. An unknown flag is a switch if it is called enable_* or disable_*."""
    if knob in TABLE:
        return TABLE[knob].type == "bool"
    return knob in SWITCHES or knob.startswith(("enable_", "disable_"))
