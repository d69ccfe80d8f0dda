"""Effective values of flags that are not given: vLLM's choice on the hardware of a reading."""

from collections.abc import Sequence
from math import inf

from agent.domain.reading import Gpu, Reading
from vllm_facts.defaults import BIG_GIB, HUGE_GIB, SIXTEEN_K_SINCE, positive_int
from vllm_facts.knobs import release_of
from vllm_facts.values import Knob, Setting

MIB_PER_GIB = 1024
BATCHED, SCHEDULED = "max_num_batched_tokens", "max_num_scheduled_tokens"


def find_token_budget(setting: Setting, reading: Reading) -> int:
    """The effective max_num_batched_tokens: as given, or vLLM's default on this hardware."""
    given = positive_int(setting, BATCHED)
    if given is not None:
        return given
    memory_gib = _memory_gib(reading.gpus)
    release = release_of(reading.facts.get("version"))
    if memory_gib >= HUGE_GIB and (release is None or release >= SIXTEEN_K_SINCE):
        return 16384
    return 8192 if memory_gib >= HUGE_GIB or _has_big_defaults(reading.gpus) else 2048


def find_step_budget(setting: Setting, reading: Reading) -> tuple[Knob, int, float]:
    """The flag that limits the tokens of a step, its value, and the limit of that value.

    Scheduled tokens never exceed batched tokens.
    """
    batched = find_token_budget(setting, reading)
    scheduled = positive_int(setting, SCHEDULED)
    if scheduled is not None and scheduled < batched:
        return SCHEDULED, scheduled, batched
    return BATCHED, batched, inf


def find_max_num_seqs(setting: Setting, reading: Reading) -> int:
    """The effective max_num_seqs: as given, or vLLM's default on this hardware."""
    given = positive_int(setting, "max_num_seqs")
    if given is not None:
        return given
    chosen = 1024 if _has_big_defaults(reading.gpus) else 256 if reading.gpus else 128
    return min(chosen, find_token_budget(setting, reading))


def _memory_gib(gpus: Sequence[Gpu]) -> float:
    """Memory of the smallest GPU; 0 if the driver does not report it."""
    return min((gpu.memory_total_mib or 0.0 for gpu in gpus), default=0.0) / MIB_PER_GIB


def _has_big_defaults(gpus: Sequence[Gpu]) -> bool:
    memory_gib = _memory_gib(gpus)
    a100 = any("a100" in gpu.name.lower() for gpu in gpus)
    return memory_gib >= HUGE_GIB or (memory_gib >= BIG_GIB and not a100)
