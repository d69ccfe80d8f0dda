"""Refusals of a start in the log that no flag and no known fact shows: rule F9."""

import re
from collections.abc import Mapping

from lint.rules.log import Recognise, Recogniser
from vllm_facts.deployment import Deployment, Finding, LintRule
from vllm_facts.sizing.effective_flags import is_expert_parallel, layout
from vllm_facts.validity.adapters import RANKS
from vllm_facts.validity.engine import find_problems
from vllm_facts.validity.quantization import check_capability
from vllm_facts.values import Knob, Value

_RANK = r"LoRA rank (?P<rank>\d{1,6}) is greater than max_lora_rank (?P<most>\d{1,6})"
_HEADS = (
    r"Total number of attention heads \((?P<heads>\d{1,6})\) must be divisible by tensor parallel size "
    r"\((?P<tp>\d{1,6})\)"
)
_BLOCK = (
    r"The (?:output_size of gate's and up's|input_size of down's) weight = (?P<share>\d+) is not divisible "
    r"by weight quantization block_[nk] = (?P<side>\d+)"
)
_CAPABILITY = (
    r"The quantization method (?P<method>[\w-]+) is not supported for the current GPU\. Minimum capability: "
    r"(?P<least>\d+)\. Current capability: (?P<has>\d+)"
)


def _find_rank(match: re.Match[str], case: Deployment) -> Finding | None:
    rank, most = int(match["rank"]), int(match["most"])
    if case.setting.get("max_lora_rank", 16) != most:
        return None  # changed since: the log is of another start
    larger = next((size for size in RANKS if size >= rank), None)
    return _refusal(
        case,
        f"an adapter of rank {rank} is refused: max_lora_rank is {most}",
        "vLLM 0.32 lora/peft_helper.py: 'LoRA rank is greater than max_lora_rank'",
        {"max_lora_rank": larger} if larger else {},
        f"adapters of at most rank {RANKS[-1]} are served",
    )


def _find_heads(match: re.Match[str], case: Deployment) -> Finding | None:
    heads, tp = int(match["heads"]), int(match["tp"])
    if layout(case).tp != tp or case.model is not None:
        return None  # changed since, or rule D3 knows more
    fits = max(size for size in (1, 2, 4, 8, 16) if heads % size == 0 and (size < tp or size == 1))
    return _refusal(
        case,
        f"the model's {heads} attention heads cannot be shared out to {tp} GPUs",
        "vLLM 0.32 config/model.py: verify_with_parallel_config",
        {"tensor_parallel_size": fits},
    )


def _find_block(match: re.Match[str], case: Deployment) -> Finding | None:
    if is_expert_parallel(case):
        return None
    return _refusal(
        case,
        f"{match['share']} of an expert's width for each GPU are no multiple of the block, {match['side']}",
        "vLLM 0.32 model_executor/layers/quantization/utils/fp8_utils.py; vllm-project/vllm#17569",
        {"enable_expert_parallel": True},
    )


def _find_capability(match: re.Match[str], case: Deployment) -> Finding | None:
    if any(check_capability(case)):
        return None
    least, has = (f"{int(match[name]) // 10}.{int(match[name]) % 10}" for name in ("least", "has"))
    return _refusal(
        case,
        f"{match['method']} weights need compute capability {least}, this GPU has {has}",
        "vLLM 0.32 config/vllm.py: _get_quantization_config",
        {},
        "another checkpoint, or a newer GPU",
    )


def _refusal(
    case: Deployment, why: str, source: str, to: Mapping[Knob, Value], otherwise: str = ""
) -> Finding | None:
    """The refusal, unless the flags and the known facts already show it."""
    if to and any(to.items() <= problem.to.items() for problem in find_problems(case)):
        return None
    return Finding(
        rule="F9",
        klass="gated" if to else "note",
        severity="error",
        why=f"it did not start: {why}",
        to=to,
        expects="it starts" if to else otherwise,
        risks="none known",
        source=f"rulebook F9; {source}",
    )


_ROWS: tuple[tuple[str, Recognise], ...] = (
    (_RANK, _find_rank),
    (_HEADS, _find_heads),
    (_BLOCK, _find_block),
    (_CAPABILITY, _find_capability),
)

LINTS: tuple[LintRule, ...] = (*(Recogniser("F9", pattern, recognise) for pattern, recognise in _ROWS),)
