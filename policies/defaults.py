"""What vLLM chooses for itself when a flag is not given (0.32 engine/arg_utils.py: get_batch_defaults)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.model import Knob, Setting
from policies.knobs import release_of

if TYPE_CHECKING:
    from agent.reading import Gpu, Reading  # `trimtab lint` has none, and would wait for its classes

MIB_PER_GIB = 1024
BIG_GIB, HUGE_GIB = 70, 160
SIXTEEN_K_SINCE = (0, 28)


def whole(setting: Setting, knob: Knob) -> int | None:
    """The knob's value where it is given as a whole number above 0."""
    value = setting.get(knob)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def token_budget(setting: Setting, reading: "Reading") -> int:
    """max_num_batched_tokens in force: given, or what vLLM chooses on this hardware."""
    given = whole(setting, "max_num_batched_tokens")
    if given is not None:
        return given
    memory_gib = _memory_gib(reading.gpus)
    release = release_of(reading.facts.get("version"))
    if memory_gib >= HUGE_GIB and (release is None or release >= SIXTEEN_K_SINCE):
        return 16384
    return 8192 if memory_gib >= HUGE_GIB or _big(reading.gpus) else 2048


def chosen_seqs(setting: Setting, reading: "Reading") -> int:
    """max_num_seqs in force: given, or what vLLM chooses on this hardware."""
    given = whole(setting, "max_num_seqs")
    if given is not None:
        return given
    chosen = 1024 if _big(reading.gpus) else 256 if reading.gpus else 128
    return min(chosen, token_budget(setting, reading))


def _memory_gib(gpus: "Sequence[Gpu]") -> float:
    """Of the smallest GPU; 0 when the driver does not say."""
    return min((gpu.memory_total_mib or 0.0 for gpu in gpus), default=0.0) / MIB_PER_GIB


def _big(gpus: "Sequence[Gpu]") -> bool:
    memory_gib = _memory_gib(gpus)
    a100 = any("a100" in gpu.name.lower() for gpu in gpus)
    return memory_gib >= HUGE_GIB or (memory_gib >= BIG_GIB and not a100)
