"""The values that a vLLM command line is made of."""

from collections.abc import Mapping
from typing import Literal

Knob = str
"""A vLLM flag by its canonical name: `max_num_seqs`, never `--max-num-seqs`."""

Value = bool | int | float | str | None
"""None: the flag is not given, vLLM's own default holds."""

Setting = Mapping[Knob, Value]

ChangeClass = Literal["auto", "gated", "note"]


def spell_flag(knob: Knob) -> str:
    """`--max-num-seqs`"""
    return "--" + knob.replace("_", "-")


def describe_changes(changes: Mapping[str, Value]) -> str:
    """`max_num_seqs 64, without swap_space`"""
    return ", ".join(
        f"without {name}" if new is None else f"{name} {str(new).lower() if isinstance(new, bool) else new}"
        for name, new in changes.items()
    )
