"""The values that a vLLM command line is made of."""

from collections.abc import Mapping
from typing import Literal

Knob = str
"""A vLLM flag by its canonical name: `max_num_seqs`, never `--max-num-seqs`."""

Value = bool | int | float | str | None
"""None means that the flag is not given, so that vLLM's own default holds."""

Setting = Mapping[Knob, Value]

ChangeClass = Literal["auto", "gated", "note"]


ENV = "env."


GPUS = "gpus"


def is_start(name: str) -> bool:
    """Whether a change names by it the image, the program, a variable or the GPUs of a server: no flag."""
    return name in {"image", "command", GPUS} or name.startswith(ENV)


def spell_flag(knob: Knob) -> str:
    """`--max-num-seqs`"""
    return "--" + knob.replace("_", "-")


def as_number(value: Value) -> float | None:
    """The value as a number; None for other values, and for True and False."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_same(value: Value, other: Value) -> bool:
    """Whether two values are the same on a command line: True, 1 and "1" differ, 1 and 1.0 do not."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def describe_changes(changes: Mapping[str, Value]) -> str:
    """`max_num_seqs 64, without swap_space`"""
    return ", ".join(
        f"without {name}" if new is None else f"{name} {str(new).lower() if isinstance(new, bool) else new}"
        for name, new in changes.items()
    )
