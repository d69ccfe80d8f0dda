"""Errors in the log of a start that name their own cause: rules V1, D3, H2, U2, K1 and E1.

A flag rule that knows the model and the GPU reports the same before a start; then the log adds nothing.
"""

import re
from dataclasses import dataclass

from lint.rules.log import Recogniser
from vllm_facts.deployment import Deployment, Finding, FindingSeverity, LintRule
from vllm_facts.deprecated_flags import RENAMED
from vllm_facts.foreign_flags import COUNTERPARTS
from vllm_facts.sizing.divisibility import why_indivisible
from vllm_facts.sizing.dtypes import type_without_float16
from vllm_facts.sizing.effective_flags import layout, text_of
from vllm_facts.validity.adapters import RANKS
from vllm_facts.validity.quantization import check_capability
from vllm_facts.values import Knob, Value

SHARE, SAFE_SHARE = "gpu_memory_utilization", 0.9


def _lora_rank(match: re.Match[str], case: Deployment) -> Finding | None:
    rank = int(match["rank"])
    present = case.setting.get("max_lora_rank")
    if isinstance(present, int) and present >= rank:
        return None  # raised since: the log is of another start
    to: dict[Knob, Value] = {"max_lora_rank": next((size for size in RANKS if size >= rank), None)}
    return _start_error(
        "V1",
        f"an adapter of rank {rank} was refused: max_lora_rank is {match['most']}",
        to if rank <= RANKS[-1] else {},
        "the adapter loads; a higher value than the largest rank wastes memory",
        "vLLM 0.32 lora/peft_helper.py; vLLM docs features/lora.md",
    )


def _heads(match: re.Match[str], case: Deployment) -> Finding | None:
    heads, tp = int(match["heads"]), int(match["tp"])
    if layout(case).tp != tp or why_indivisible(case.model, tp):
        return None  # another start, or the flag rule reports it
    to = next(size for size in range(tp, 0, -1) if heads % size == 0 and size & (size - 1) == 0)
    return _start_error(
        "D3",
        f"it did not start: {heads} attention heads cannot be shared out to {tp} GPUs",
        {"tensor_parallel_size": to},
        f"it starts with {to} GPUs for each engine, if they hold the model; else with a pipeline",
        "vLLM 0.32 config/model.py: verify_with_parallel_config",
    )


def _expert_blocks(match: re.Match[str], case: Deployment) -> Finding | None:
    if case.setting.get("enable_expert_parallel") is True:
        return None  # whole experts: the line is of another start
    if case.model and case.model.weight_block and case.model.moe_intermediate:
        return None  # the flag rule reports it
    return _start_error(
        "V1",
        f"it did not start: {match['size']} columns of an expert on each GPU are no multiple of the "
        f"{match['block']} of a block of FP8 weights",
        {"enable_expert_parallel": True},
        "it starts, with whole experts on each GPU; or with a smaller tensor_parallel_size",
        "vLLM 0.32 model_executor/layers/quantization/utils/fp8_utils.py; vllm-project/vllm#17569",
    )


def _bfloat16(match: re.Match[str], case: Deployment) -> Finding | None:
    if (case.card and case.card.capability) or text_of(case, "dtype") in {"half", "float16", "float32"}:
        return None  # the flag rule reports it, or the line is of another start
    needs_float32 = bool(type_without_float16(case.model))
    return _start_error(
        "H2",
        f"it did not start: {match['card']} has no bfloat16",
        {"dtype": "float32" if needs_float32 else "half"},
        "it starts" + (", with twice the memory for weights" if needs_float32 else ", in float16"),
        "vLLM 0.32 platforms/cuda.py: check_if_supports_dtype",
        risks="float16 has a smaller range: check the answers of a model trained in bfloat16",
    )


def _capability(match: re.Match[str], case: Deployment) -> Finding | None:
    if any(check_capability(case)):
        return None  # the flag rule reports it
    least, present = (_dotted(match[name]) for name in ("least", "present"))
    return _start_error(
        "H2",
        f"it did not start: {match['method']} weights need compute capability {least}, the GPU has {present}",
        {},
        "a checkpoint in another format (AWQ and GPTQ run from 7.5 on), or a newer GPU",
        "vLLM 0.32 config/vllm.py: _get_quantization_config; vLLM docs features/quantization (supported "
        "hardware)",
    )


def _spell(knob: Knob) -> str:
    return "--" + knob.replace("_", "-")


def _fp8_cache(match: re.Match[str], case: Deployment) -> Finding:
    to: dict[Knob, Value] = {}
    if text_of(case, "kv_cache_dtype").startswith("fp8"):
        to = {"kv_cache_dtype": None}
    return _start_error(
        "H2",
        f"it did not start: the GPU does not know {match['kind']}, FP8 of compute capability 8.9 and later",
        to,
        "it starts, with a KV cache in the model's dtype; before Ada only FLASHINFER reads FP8 caches",
        "vllm-project/vllm#26431, vllm-project/vllm#45829",
        risks="the KV cache holds half as many tokens",
    )


def _unknown_flags(match: re.Match[str], case: Deployment) -> Finding | None:
    named = [word.lstrip("-").replace("-", "_") for word in re.findall(r"--[\w-]+", match["words"])]
    given = [knob for knob in named if knob in case.setting]
    known = [knob for knob in given if knob in RENAMED]
    reported = [knob for knob in known if RENAMED[knob].gone(case.version) is not None]
    if not given or reported == given:
        return None
    to: dict[Knob, Value] = {}
    for knob in known:
        to |= RENAMED[knob].changes(knob, case.setting[knob])
    how = " ".join(RENAMED[knob].how for knob in known)
    meant = ", ".join(_spell(COUNTERPARTS[knob]) for knob in given if knob in COUNTERPARTS)
    return _start_error(
        "V1",
        f"it did not start: this vLLM does not know {', '.join(map(_spell, given))}",
        to,
        f"it starts. {how}".strip()
        if known
        else f"vLLM has {meant} instead"
        if meant
        else "it starts without the flag, or with a release that has it",
        "vLLM entrypoints/cli: its parser ends with exit code 2",
    )


def _preempted(match: re.Match[str], case: Deployment) -> Finding:
    share, seqs = case.setting.get(SHARE), case.setting.get("max_num_seqs")
    to: dict[Knob, Value] = {}
    if isinstance(share, float) and share < SAFE_SHARE:
        to = {SHARE: SAFE_SHARE}
    elif isinstance(seqs, int) and seqs > 1:
        to = {"max_num_seqs": max(1, seqs * 3 // 4)}
    return Finding(
        rule="K1",
        klass="auto" if to else "note",
        severity="warning",
        why="according to the log requests are preempted: the KV cache is too small for all that run at once",
        to=to,
        expects="fewer requests are computed twice; next: more GPUs, an FP8 KV cache, fewer sequences",
        risks="fewer requests run at once"
        if "max_num_seqs" in to
        else "less memory outside vLLM's accounting",
        source="rulebook K1; vLLM docs configuration/optimization.md (preemption)",
        evidence={"line": match[0][:160]},
    )


def _context_above_model(match: re.Match[str], case: Deployment) -> Finding | None:
    given, own = int(match["given"]), int(match["own"])
    if case.setting.get("max_model_len") != given or (case.model and case.model.max_len):
        return None  # another start, or the flag rule reports it
    return _start_error(
        "V1",
        f"it did not start: max_model_len {given} is above the {own} tokens of the model",
        {"max_model_len": own},
        "it starts; the model's card says whether rope scaling (--hf-overrides) extends it",
        "vLLM 0.32 config/model.py: _get_and_verify_max_len",
    )


def _start_error(
    rule: str, why: str, to: dict[Knob, Value], expects: str, source: str, risks: str = "none known"
) -> Finding:
    severity: FindingSeverity = "error"
    return Finding(
        rule=rule,
        klass="gated" if to else "note",
        severity=severity,
        why=why,
        to=to,
        expects=expects,
        risks=risks,
        source=f"rulebook {rule}; {source}",
    )


def _dotted(capability: str) -> str:
    """`7.5` of "75"."""
    return f"{capability[:-1]}.{capability[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoFlag:
    """A line whose cause no flag removes. `why` may name groups of the pattern."""

    rule: str
    pattern: str
    why: str
    expects: str
    source: str

    def recognise(self, match: re.Match[str], _: Deployment) -> Finding:
        return _start_error(self.rule, self.why.format(**match.groupdict()), {}, self.expects, self.source)


_SHM = r"ncclShmOpen|(?:creating|open|extend) shared memory segment|insufficient shared memory"
_NO_FLAG = (
    _NoFlag(
        rule="U2",
        pattern=_SHM,
        why="NCCL or the workers found too little shared memory (/dev/shm)",
        expects="it starts with `docker run --ipc=host` or `--shm-size=16g` (in Kubernetes an emptyDir of "
        "medium Memory at that path); Docker's default is 64 MB",
        source="vLLM docs deployment/docker.md; vllm-project/vllm#1125, vllm-project/vllm#1710",
    ),
    _NoFlag(
        rule="V1",
        pattern=r"GGUF model with architecture \S+ is not supported yet|Architecture \S+ not supported",
        why="it did not start: the GGUF reader does not know this architecture",
        expects="the original weights, or an AWQ, GPTQ or FP8 checkpoint: vLLM calls GGUF experimental",
        source="vLLM docs features/quantization/gguf.md; vllm-project/vllm#39612",
    ),
    _NoFlag(
        rule="V1",
        pattern=r"Model architectures \[?'?(?P<name>\w+)'?\]? (?:are not supported|failed to be inspected)",
        why="it did not start: this vLLM does not know the architecture {name}",
        expects="a newer vLLM and transformers, or --model-impl transformers where that library knows it",
        source="vLLM 0.32 model_executor/models/registry.py; vLLM docs models/supported_models.md",
    ),
    _NoFlag(
        rule="E1",
        pattern=r"no kernel image is available for execution on the device",
        why="this build of vLLM has no kernels for the GPU: 'no kernel image is available'",
        expects="it runs with a build for the GPU: newer wheels for new GPUs, 0.19 and older for Volta",
        source="vLLM docs getting_started/installation/gpu.md",
    ),
)
LINTS: tuple[LintRule, ...] = (
    Recogniser("V1", r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank:? (?P<most>\d+)", _lora_rank),
    Recogniser(
        "D3",
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        _heads,
    ),
    Recogniser(
        "V1",
        r"(?:gate's and up's|down's) weight = (?P<size>\d+) is not divisible by weight quantization "
        r"block_[nk] = (?P<block>\d+)",
        _expert_blocks,
    ),
    Recogniser(
        "H2",
        r"quantization method (?P<method>\S+) is not supported for the current GPU\. "
        r"Minimum capability: (?P<least>\d+)\. Current capability: (?P<present>\d+)",
        _capability,
    ),
    Recogniser(
        "H2",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. "
        r"Your (?P<card>.+?) GPU",
        _bfloat16,
    ),
    Recogniser("H2", r"type (?P<kind>fp8e4\w+) not supported in this architecture", _fp8_cache),
    Recogniser("V1", r"error: unrecognized arguments: (?P<words>.*)", _unknown_flags),
    Recogniser("K1", r"is preempted by PreemptionMode\.\w+ mode", _preempted),
    Recogniser(
        "V1",
        r"User-specified max_model_len \((?P<given>\d+)\) is greater than the derived max_model_len "
        r"\(\D*(?P<own>\d+)",
        _context_above_model,
    ),
    *(Recogniser(row.rule, row.pattern, row.recognise) for row in _NO_FLAG),
)
