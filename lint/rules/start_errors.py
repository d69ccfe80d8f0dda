"""Errors in the log of a start that name their own cause: rules V1, D3, H2, U2, K1 and E1.

A flag rule that knows the model and the GPU reports the same before a start; then the log adds nothing.
"""

import re

from flettner.lint.recogniser import recogniser
from flettner.lint.rules.known_errors import AT_START, check_known_errors
from flettner.lint.rules.speculation import drafts_in_parallel, own_cache
from flettner.lint.rules.unknown_flags import is_unknown
from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.drafts import find_flags
from flettner.vllm_facts.flag_parser import STRAY
from flettner.vllm_facts.references import DOCS, OPTIMIZATION
from flettner.vllm_facts.releases.history import describe_value, has_variable, values_in
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, ServeConfig
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.dtypes import type_without_float16
from flettner.vllm_facts.sizing.effective_flags import is_sparse, layout, text_of
from flettner.vllm_facts.start_facts import LONGEST_LINE
from flettner.vllm_facts.validity.adapters import RANKS
from flettner.vllm_facts.validity.precision import check_bfloat16
from flettner.vllm_facts.validity.quantization import check_capability
from flettner.vllm_facts.values import Knob, Value, spell_flag

SHARE, SAFE_SHARE = "gpu_memory_utilization", 0.9


def _lora_rank(match: re.Match[str], config: ServeConfig) -> Finding | None:
    rank = int(match["rank"])
    present = config.setting.get("max_lora_rank")
    if isinstance(present, int) and present >= rank:
        return None  # raised since: the log is of another start
    to: dict[Knob, Value] = {"max_lora_rank": next((size for size in RANKS if size >= rank), None)}
    return _start_error(
        "V1",
        f"an adapter of rank {rank} was refused: max_lora_rank is {match['most']}",
        to if rank <= RANKS[-1] else {},
        "the adapter loads; a higher value than the largest rank wastes memory",
    )


def _heads(match: re.Match[str], config: ServeConfig) -> Finding | None:
    heads, tp = int(match["heads"]), int(match["tp"])
    if layout(config).tp != tp or why_indivisible(config.model, tp):
        return None  # another start, or the flag rule reports it
    to = next(size for size in range(tp, 0, -1) if heads % size == 0 and size & (size - 1) == 0)
    return _start_error(
        "D3",
        f"it did not start: {heads} attention heads cannot be shared out to {tp} GPUs",
        {"tensor_parallel_size": to},
        f"it starts with {to} GPUs for each engine, if they hold the model; else with a pipeline",
    )


def _expert_blocks(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if config.setting.get("enable_expert_parallel") is True:
        return None  # whole experts: the line is of another start
    if config.version and config.model and config.model.weight_block and config.model.moe_intermediate:
        return None  # the flag rule reports it, which needs the release
    return _start_error(
        "V1",
        f"it did not start: {match['size']} columns of an expert on each GPU are no multiple of the "
        f"{match['block']} of a block of FP8 weights",
        {"enable_expert_parallel": True},
        "it starts, with whole experts on each GPU; or with a smaller tensor_parallel_size",
    )


def _bfloat16(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if any(check_bfloat16(config)) or text_of(config, "dtype") in {"half", "float16", "float32"}:
        return None  # the flag rule reports it, or the line is of another start
    needs_float32 = bool(type_without_float16(config.model))
    return _start_error(
        "H2",
        f"it did not start: {match['card']} has no bfloat16",
        {"dtype": "float32" if needs_float32 else "half"},
        "it starts" + (", with twice the memory for weights" if needs_float32 else ", in float16"),
        risks="float16 has a smaller range: check the answers of a model trained in bfloat16",
    )


def _capability(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if any(check_capability(config)):
        return None  # the flag rule reports it
    least, present = (_dotted(match[name]) for name in ("least", "present"))
    return _start_error(
        "H2",
        f"it did not start: {match['method']} weights need compute capability {least}, the GPU has {present}",
        {},
        "a checkpoint in another format (AWQ and GPTQ run from 7.5 on), or a newer GPU; on a host "
        "with GPUs of several kinds CUDA_VISIBLE_DEVICES leaves the older GPUs out",
    )


def _fp8(match: re.Match[str], config: ServeConfig) -> Finding:
    unknown = (
        f"it did not start: the GPU does not know {match['kind']}, FP8 of compute capability 8.9 and later"
    )
    if marlin := _marlin_experts(config):
        return _start_error(
            "H2",
            f"{unknown}: vLLM chose the experts' Triton kernels, which compute in it",
            marlin,
            "it starts: Marlin reads FP8 weights on older GPUs, and computes in 16 bit",
            source="vllm-project/vllm#54318",
        )
    if not text_of(config, "kv_cache_dtype").startswith("fp8"):
        return _start_error(
            "H2",
            f"{unknown}: a kernel for the checkpoint's FP8 weights computes in it, not the KV cache",
            {},
            f"{_name_marlin(config)}a checkpoint in AWQ or GPTQ; newer releases run many FP8 checkpoints on "
            "Ampere by Marlin",
        )
    return _start_error(
        "H2",
        unknown,
        {"kv_cache_dtype": None},
        "it starts, with a KV cache in the model's dtype; before Ada only FLASHINFER reads FP8 caches",
        risks="the KV cache holds half as many tokens",
    )


def _marlin_experts(config: ServeConfig) -> dict[Knob, Value]:
    """Marlin for the experts, if their kernels failed and the release has the choice."""
    failed = any(_EXPERTS.search(line[:LONGEST_LINE]) for line in config.log)
    free = config.setting.get("moe_backend") in (None, "auto", "triton")
    choices = values_in("moe_backend", config.version) or ()
    return {"moe_backend": "marlin"} if failed and free and "marlin" in choices else {}


def _name_marlin(config: ServeConfig) -> str:
    """How to choose Marlin for FP8 weights, in the releases that have a choice; "" where it is chosen."""
    ways = [
        f"--{knob.replace('_', '-')} marlin for {layers} ({describe_value(knob, 'marlin')})"
        for knob, layers in (("moe_backend", "the experts"), ("linear_backend", "other layers"))
        if config.setting.get(knob) in (None, "auto", "triton")
        and "marlin" in (values_in(knob, config.version) or ())
        and (knob != "moe_backend" or is_sparse(config) or not config.model)
    ]
    if _FORCE_MARLIN not in config.env and has_variable(_FORCE_MARLIN, config.version or _FORCED) is True:
        ways.append(f"{_FORCE_MARLIN}=1 for all (up to 0.28)")
    chosen = any(config.setting.get(knob) == "marlin" for knob in ("moe_backend", "linear_backend"))
    return "" if chosen or not ways else f"Marlin, which computes in 16 bit: {', '.join(ways)}; or "


_EXPERTS = re.compile(r"/fused_moe|\bdef fused_moe\w*kernel|\bfused_moe_kernel\w*\(")
_FORCE_MARLIN, _FORCED = "VLLM_TEST_FORCE_FP8_MARLIN", "0.28.0"  # and a release that reads it
_SHELL = re.compile(r"\A *(?:(?:/\S{1,40}/)?(?:bash|sh) -\w{0,3}c\b|python3? -m vllm\.|vllm serve\b|serve )")
_OR_NO_DRAFTS = "; or, with this format of the KV cache, without the drafts, whose attention does not read it"


def _no_backend(match: re.Match[str], config: ServeConfig) -> Finding:
    """The message lists what each backend lacks; a lack of the cache's format alone can be ended."""
    asked, _, reasons = match["rest"].partition("Reasons: {")
    lacks = {
        name: parts.split(", ") for name, parts in re.findall(r"\b(\w{1,60}): \[([^\]]{0,300})\]", reasons)
    }
    cache = re.search(r"kv_cache_dtype=(\w{1,40})", asked)
    of_cache = ["kv_cache_dtype not supported"]
    nearest = min(lacks, key=lambda name: (lacks[name] != of_cache, len(lacks[name])), default="")
    to: dict[Knob, Value] = {}
    of_draft = "use_non_causal=True" in match[0] and drafts_in_parallel(config)
    if of_draft and lacks.get(nearest) != of_cache:
        return _start_error(
            "H1",
            "it did not start: no attention backend on this GPU computes the drafts, which look at all "
            "drafted tokens at once (non-causal attention)",
            dict.fromkeys(find_flags(config.setting)),
            "it starts without drafts; MTP, EAGLE and n-grams need causal attention only",
        )
    if lacks.get(nearest) == of_cache and cache is not None and cache[1] != "auto":
        to = {"kv_cache_dtype": None if config.setting.get("kv_cache_dtype") else "bfloat16"}
        if of_draft:
            to = dict(own_cache(config)) or to
    lack = f": {nearest} lacks the least ({', '.join(lacks[nearest])})" if nearest else ""
    return _start_error(
        "H1",
        f"it did not start: no attention backend runs this model, KV cache and head size on this GPU{lack}",
        to,
        f"it starts with {nearest}" + (_OR_NO_DRAFTS if of_draft and "kv_cache_dtype" in to else "")
        if to
        else "another release or another kind of GPU: what each backend lacks is in the message",
        risks="the KV cache holds half as many tokens" if to else "none known",
    )


def _unknown_flags(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if _SHELL.match(match["words"]):
        return _start_error(
            "V1",
            "it did not start: the image's entrypoint is vLLM's server, so a shell or a command behind the "
            f"image is an argument of it (`{match['words'].strip()[:60]}`)",
            {},
            "it starts with the flags alone behind the image; with a shell as the entrypoint (docker run "
            "--entrypoint /bin/bash IMAGE -c '…', `entrypoint:` in compose, `command:` in Kubernetes)",
        )
    named = [word.lstrip("-").replace("-", "_") for word in re.findall(r"--[\w-]+", match["words"])]
    if not named and not config.entry_fault and STRAY not in config.setting:
        return _start_error(
            "V1",
            f"it did not start: `{match['words'].strip()[:80]}` belongs to no flag",
            {},
            "it starts without it, or with what it lacks: the dashes of a flag, the quotes around a value "
            "with spaces; or it is a second name of the model, beside --model or a `serve` too many",
        )
    given = [knob for knob in named if knob in config.setting]
    renamed = [knob for knob in given if knob in RENAMED]
    reported = [knob for knob in renamed if RENAMED[knob].gone(config.version) is not None]
    if not given or reported == given or all(map(is_unknown, given)):
        return None  # the flag rules report them
    to: dict[Knob, Value] = {}
    for knob in renamed:
        to |= RENAMED[knob].changes(knob, config.setting[knob])
    how = " ".join(RENAMED[knob].how for knob in renamed)
    return _start_error(
        "V1",
        f"it did not start: this vLLM does not know {', '.join(map(spell_flag, given))}",
        to,
        f"it starts. {how}".strip()
        if renamed
        else "it starts without the flag, or with a release that has it",
    )


def _preempted(match: re.Match[str], config: ServeConfig) -> Finding:
    share, seqs = config.setting.get(SHARE), config.setting.get("max_num_seqs")
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
        evidence={"line": match[0][:160]},
    )


def _context_above_model(match: re.Match[str], config: ServeConfig) -> Finding | None:
    given, own = int(match["given"]), int(match["own"])
    if config.setting.get("max_model_len") != given or (config.model and config.model.max_len):
        return None  # another start, or the flag rule reports it
    return _start_error(
        "V1",
        f"it did not start: max_model_len {given} is above the {own} tokens of the model",
        {"max_model_len": own},
        "it starts; the model's card says whether rope scaling (--hf-overrides) extends it",
    )


def _start_error(
    rule: str, why: str, to: dict[Knob, Value], expects: str, risks: str = "none known", source: str = ""
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
        source=source,
    )


def _dotted(capability: str) -> str:
    """`7.5` of "75"."""
    return f"{capability[:-1]}.{capability[-1]}"


LINTS = (
    recogniser(
        "V1",
        r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank:? (?P<most>\d+)",
        _lora_rank,
        reports="an adapter whose rank is above max_lora_rank",
        source=f"vllm/lora/peft_helper.py: 'is greater than max_lora_rank'; {DOCS}/features/lora/",
    ),
    recogniser(
        "D3",
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        _heads,
        reports="attention heads that cannot be shared out to the GPUs",
        source="vllm/config/model.py: verify_with_parallel_config",
    ),
    recogniser(
        "V1",
        r"(?:gate's and up's|down's) weight = (?P<size>\d+) is not divisible by weight quantization "
        r"block_[nk] = (?P<block>\d+)",
        _expert_blocks,
        reports="experts whose FP8 blocks do not divide over the GPUs",
        source=(
            "vllm/model_executor/layers/quantization/utils/fp8_utils.py: 'is not divisible by'; "
            "vllm-project/vllm#17569"
        ),
    ),
    recogniser(
        "H2",
        r"quantization method (?P<method>\S+) is not supported for the current GPU\. "
        r"Minimum capability: (?P<least>\d+)\. Current capability: (?P<present>\d+)",
        _capability,
        reports="a quantization that this GPU does not have",
        source="vllm/config/vllm.py: _get_quantization_config",
    ),
    recogniser(
        "H2",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. "
        r"Your (?P<card>.+?) GPU",
        _bfloat16,
        reports="a GPU without bfloat16",
        source="vllm/platforms/cuda.py: check_if_supports_dtype",
    ),
    recogniser(
        "H2",
        r"type (?P<kind>fp8e4\w+) not supported in this architecture",
        _fp8,
        reports="a KV cache or weights in fp8 that this GPU does not have",
        source="vllm-project/vllm#26431; vllm-project/vllm#45829",
    ),
    recogniser(
        "H1",
        r"No valid attention backend found for (?P<rest>.{1,3000})",
        _no_backend,
        reports="a model, KV cache or head size for which this GPU has no attention backend",
        source="vllm/platforms/cuda.py: 'No valid attention backend found'; vllm-project/vllm#32732",
    ),
    recogniser(
        "V1",
        r"error: unrecognized arguments: (?P<words>.*)",
        _unknown_flags,
        reports="flags that the parser of the installed vLLM does not know",
        source="vllm/utils/argparse_utils.py: FlexibleArgumentParser",
    ),
    recogniser(
        "K1",
        r"is preempted by PreemptionMode\.\w+ mode",
        _preempted,
        reports="requests that are preempted because the KV cache is full",
        source=f"{OPTIMIZATION} (preemption)",
    ),
    recogniser(
        "V1",
        r"User-specified max_model_len \((?P<given>\d+)\) is greater than the derived max_model_len "
        r"\(\D*(?P<own>\d+)",
        _context_above_model,
        reports="a context longer than the model supports",
        source="vllm/config/model.py: _get_and_verify_max_len",
    ),
    check_known_errors("U2", "V1", "E1", files=AT_START),
)
