"""Effective values of flags that are not given: vLLM's choice on the hardware of a reading."""

from math import inf

from flettner.agent.domain.reading import Reading
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import find_default_number
from flettner.vllm_facts.values import Knob, Setting

MIB_PER_GIB = 1024
BATCHED, SCHEDULED = "max_num_batched_tokens", "max_num_scheduled_tokens"
SMALLEST_BUDGET, SEQS_ON_CPU, SEQS_ON_GPU = 2048, 128, 256
"""What vLLM chooses if the memory of the GPU is unknown."""


def find_token_budget(setting: Setting, reading: Reading) -> int:
    """The effective max_num_batched_tokens: as given, or vLLM's default on this hardware."""
    return positive_int(setting, BATCHED) or _find_default(BATCHED, reading) or SMALLEST_BUDGET


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
    unknown = SEQS_ON_GPU if reading.gpus else SEQS_ON_CPU
    return min(_find_default("max_num_seqs", reading) or unknown, find_token_budget(setting, reading))


def _find_default(knob: Knob, reading: Reading) -> int | None:
    """The default of vLLM on the smallest GPU; None if the driver does not report its memory."""
    memory_mib = min((gpu.memory_total_mib or 0.0 for gpu in reading.gpus), default=0.0)
    default = find_default_number(
        knob,
        reading.facts.get("version"),
        memory_gib=memory_mib / MIB_PER_GIB,
        card=" ".join(gpu.name for gpu in reading.gpus),
    )
    return None if default is None else int(default)
