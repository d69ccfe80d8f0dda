"""CUDA out of memory in a startup log: while weights load, in the warm-up, later (rules F5 and M2).

What a change frees and what it leaves is computed with the sizes in the log, or else with estimates.
"""

import re
from dataclasses import dataclass, replace
from math import ceil, floor

from flettner.lint.kernel_causes import fills_workspace
from flettner.lint.memory_causes import fills_attention_workspace
from flettner.lint.recogniser import recogniser
from flettner.lint.rules.known_errors import PINNED
from flettner.vllm_facts.references import CONSERVING_MEMORY
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    effective_batched_tokens,
    effective_seqs,
    is_at_least,
    is_older_than,
    layout,
    memory_share,
    number_of,
    text_of,
)
from flettner.vllm_facts.sizing.kv_cache import (
    ERROR,
    GIB,
    USABLE,
    estimate_fit,
    fit_in_16_bit,
    longest_request,
    weights_gib,
)
from flettner.vllm_facts.sizing.limits import (
    LENGTH,
    MOST_SHARE,
    SEQS,
    SHARE,
    TOKENS,
    round_length,
    round_share,
    share_limit,
)
from flettner.vllm_facts.start_facts import OUT_OF_MEMORY, StartFacts
from flettner.vllm_facts.values import Knob, Value

_LOWER = (0.85, 0.8)  # M2: where to go after an OOM of unknown size
COUNTS_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
_MARGIN_GIB = 0.25  # freed beyond the allocation that failed: the next ones are smaller
_GRAPHS_GIB = 1.5  # freed where CUDA graphs are captured: many small allocations, 0.5 to 2 GiB in all
_SHORT, _FEW, _STEP = 2048, 8, 2048
_FEW_IMAGES, _CROSS_ATTENDS = 16, re.compile(r"llama-3\.2-(?:11|90)b-vision")
_SAFE = 0.95  # share of the remaining KV cache that a shorter request may take
_BY_LAYER_SINCE, _COPIES_SINCE, _WITH_COPIES = (0, 16), (0, 13), 1.5  # --quantization fp8
_CROWDED = 0.05  # share of the card that other processes hold, from which they are the first to look at
_IMAGES = (
    "; the start profiles the largest images and videos: --limit-mm-per-prompt "
    """'{"image":1,"video":0}' and --mm-processor-kwargs '{"max_pixels":…}' make that smaller"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """GiB of one GPU: in all, left for the KV cache, and needed for one request of full length."""

    total: float
    kv: float
    request: float

    def leaves(self, present: float, share: float) -> float:
        """The KV cache at a lower share."""
        return self.kv - (present - share) * self.total


def _warm_up_failure(match: re.Match[str], config: ServeConfig) -> Finding | None:
    dummies, seqs = int(match["dummies"]), config.setting.get(SEQS)
    if isinstance(seqs, int) and seqs < dummies:
        return None  # lowered since: the log is of another start
    to: dict[Knob, Value] = {SEQS: 1 << max(0, (dummies // 4).bit_length() - 1)}
    share, why = find_share(config, _LOWER[:1])
    if share is not None:
        to[SHARE] = share
    return Finding(
        rule="F5",
        klass="auto",
        severity="error",
        why=f"it did not start: out of GPU memory while it warmed up with {dummies} dummy requests",
        to=to,
        expects="it starts; if not, try a shorter context (max_model_len, an operator's decision)"
        + (f". {SHARE} stays: {why}" if share is None and why else ""),
        risks="fewer requests run at once; less KV cache",
        evidence={"dummy_requests": dummies},
    )


def _out_of_memory(match: re.Match[str], config: ServeConfig) -> Finding | None:
    start = config.start or StartFacts()
    if start.warm_up_seqs is not None or fills_workspace(config) or fills_attention_workspace(config):
        return None  # F5, or F9 knows more
    if (whole := _read_whole(config)) is not None:
        return _quantised_too_late(match, whole)
    if start.stage == "load" or _weights_exceed_share(config):
        return _weights_too_large(match, config)
    others = _describe_others(start)
    if start.stage == "profile":
        to, why, expects = _shrink_step(config)
    elif start.uncounted_share is not None and config.env.get(COUNTS_GRAPHS) == "0":
        return _count_graphs(match, start.uncounted_share)
    else:
        to, why, expects = _shrink_cache(config)
    return Finding(
        rule="M2",
        klass="gated" if LENGTH in to else "auto" if to else "note",
        severity="error",
        why=f"the log shows an out of memory of the GPU: {why}{others}",
        to=to,
        expects=expects + (_IMAGES if _reads_images(config) else ""),
        risks="longer requests are refused; less KV cache" if LENGTH in to else "less KV cache",
        evidence={"line": match[0][:160]},
    )


def _count_graphs(match: re.Match[str], share: float) -> Finding:
    return Finding(
        rule="M2",
        klass="auto",
        severity="error",
        why=(
            f"the log shows an out of memory of the GPU: {COUNTS_GRAPHS}=0 leaves the CUDA graphs out of the "
            f"memory that is planned, and they take {share:.1%} of the GPU"
        ),
        env={COUNTS_GRAPHS: None},
        expects=f"the graphs have their memory; the KV cache is smaller by that. If not, lower {SHARE}",
        risks="less KV cache",
        source="vllm/v1/worker/gpu_worker.py: 'CUDA graph memory profiling is disabled'",
        evidence={"line": match[0][:160]},
    )


def _shrink_cache(config: ServeConfig) -> tuple[dict[Knob, Value], str, str]:
    """Less KV cache, for the allocations outside vLLM's accounting; else fewer or shorter requests."""
    outside = "allocations outside vLLM's accounting need more memory"
    if number_of(config, PINNED) is not None:
        return _shrink_pinned(config)
    share, why = find_share(config, _LOWER)
    if share is not None:
        return {SHARE: share}, outside, f"no further OOM; otherwise {_name_next(config)}"
    seqs, present = effective_seqs(config), memory_share(config)
    if why:
        outside += f", but {why}"
    shorter = _find_shorter(config)
    if shorter is not None:
        length, share = shorter
        freed = {SHARE: share} if share < present else {}
        return {**freed, LENGTH: length}, outside, f"it starts, with requests of up to {length:,} tokens"
    if seqs is not None and seqs > (_FEW if why else 1):
        to: dict[Knob, Value] = {SEQS: seqs // 2}
        return to, outside, "less memory for sampling and graphs; otherwise a shorter max_model_len"
    if why:
        return (
            {},
            outside,
            (
                f"no {SHARE} starts this model here: a quantised checkpoint, an FP8 KV cache, a shorter "
                f"{LENGTH} or more GPUs"
            ),
        )
    return {}, outside, "no further OOM with a shorter max_model_len, a quantised checkpoint or more GPUs"


def _name_next(config: ServeConfig) -> str:
    """What to try if a lower share is not enough."""
    if config.start is None or config.start.stage != "graphs":
        return "lower max_num_seqs, then max_model_len"
    return (
        "a lower max_num_seqs, for which fewer CUDA graphs are captured; --enforce-eager does without them, "
        "and decodes more slowly"
    )


def _margin_gib(start: StartFacts) -> float:
    return _GRAPHS_GIB if start.stage == "graphs" else _MARGIN_GIB


def _shrink_pinned(config: ServeConfig) -> tuple[dict[Knob, Value], str, str]:
    """A smaller KV cache where its size is given; no size if too little would be left, or none is known."""
    start, memory = config.start or StartFacts(), _find_memory(config)
    pinned = (number_of(config, PINNED) or 0.0) / GIB
    why = f"--kv-cache-memory-bytes takes {pinned:.2f} GiB, free or not, and {SHARE} does not count"
    desktop = "a desktop on the GPU (Windows, WSL) takes 1 to 2 GiB"
    left = floor(16 * (pinned - (start.missing_gib or 0.0) - _MARGIN_GIB)) / 16
    enough = left > 0 if memory is None else left >= memory.request
    if start.missing_gib is None or not enough:
        return (
            {PINNED: None},
            why,
            f"vLLM measures what is free within {SHARE}; {desktop}",
        )
    return (
        {PINNED: int(left * GIB)},
        why,
        f"no further OOM; without the flag vLLM measures what is free; {desktop}",
    )


def _shrink_step(config: ServeConfig) -> tuple[dict[Knob, Value], str, str]:
    why = f"the largest step did not fit beside the weights, which no {SHARE} changes"
    tokens, seqs = effective_batched_tokens(config), effective_seqs(config)
    if _CROSS_ATTENDS.search(text_of(config, "model").lower()) and (seqs is None or seqs > _FEW_IMAGES):
        return (
            {SEQS: _FEW_IMAGES, "enforce_eager": True},
            "each request of the largest step has an image, to which this model attends in layers of its own",
            "it starts, as its maintainers advise (vllm-project/vllm#8879)",
        )
    if tokens is not None and tokens > _STEP:
        return (
            {TOKENS: max(_STEP, 1 << (tokens // 2).bit_length() - 1)},
            why,
            "a smaller step needs less memory",
        )
    if seqs is not None and seqs > _FEW:
        return {SEQS: max(_FEW, seqs // 4)}, why, "sampling for fewer requests needs less memory"
    return {}, why, "a quantised checkpoint, or more GPUs for an engine"


def find_share(config: ServeConfig, steps: tuple[float, ...]) -> tuple[float | None, str]:
    """A lower gpu_memory_utilization that frees enough and holds a request; else None, and why not."""
    start, present = config.start or StartFacts(), memory_share(config)
    if number_of(config, PINNED) is not None:
        return None, "--kv-cache-memory-bytes gives the size of the KV cache"
    memory, total = _find_memory(config), _total_gib(config)
    if present > MOST_SHARE and memory is not None and memory.kv > memory.request:
        steps = (*steps, ceil(100 * present - 100 * (memory.kv - memory.request) / memory.total) / 100)
    share: float | None
    if start.missing_gib is not None and total:
        share = round_share(present - (start.missing_gib + _margin_gib(start)) / total)
    elif start.uncounted_share:
        share = round_share(present - start.uncounted_share)
    else:
        lower = [step for step in steps if step < present]
        roomy = (step for step in lower if memory is None or memory.leaves(present, step) >= memory.request)
        share = next(roomy, lower[0] if lower else None)
    limit = share_limit(config)
    if share is not None and limit is not None:
        share = min(share, limit)
    if share is None or share <= 0:
        return None, ""
    if memory is not None and (left := memory.leaves(present, share)) < memory.request:
        return None, (
            f"at {SHARE} {share:g} {max(0.0, left):.2f} GiB would be left for the KV cache, and one request "
            f"of full length needs {memory.request:.2f}"
        )
    return share, ""


def _find_shorter(config: ServeConfig) -> tuple[int, float] | None:
    """The max_model_len that fits after the failed allocation has its room, and the share for it."""
    start, present, memory = config.start or StartFacts(), memory_share(config), _find_memory(config)
    most = longest_request(config)
    if memory is None or most is None or start.missing_gib is None or memory.request <= 0:
        return None
    share = round_share(present - (start.missing_gib + _MARGIN_GIB) / memory.total)
    length = round_length(int(most * _SAFE * memory.leaves(present, share) / memory.request))
    return (length, share) if _SHORT <= length < most else None


def _find_memory(config: ServeConfig) -> _Memory | None:
    """The sizes in the log; what it lacks is estimated from the model and the GPU, where both are known."""
    start, total, fit, most = config.start, _total_gib(config), estimate_fit(config), longest_request(config)
    logged = start.kv_gib if start is not None else None
    needed = start.request_gib if start is not None else None
    if needed is None and start is not None and start.kv_gib and start.kv_tokens and most is not None:
        needed = start.kv_gib * most / start.kv_tokens
    if fit is not None and fit.bound == "about":
        logged = fit.kv_gib if logged is None else logged
        needed = fit.kv_bytes * most / GIB if needed is None and most is not None else needed
    if total is None or logged is None or needed is None:
        return None
    return _Memory(total=total, kv=logged, request=needed)


def _total_gib(config: ServeConfig) -> float | None:
    if config.start is not None and config.start.total_gib:
        return config.start.total_gib
    return config.card.memory_gib * USABLE if config.card and config.card.memory_gib else None


def _describe_others(start: StartFacts) -> str:
    if start.total_gib is None or start.others_gib is None or start.others_gib < _CROWDED * start.total_gib:
        return ""
    held = f"{start.others_gib:.1f} of the {start.total_gib:g} GiB"
    return f"; other processes hold {held} (nvidia-smi lists them)"


def _weights_exceed_share(config: ServeConfig) -> bool:
    """Whether the weights leave no KV cache at the highest share, by the estimate or the log."""
    fit = estimate_fit(config, share=MOST_SHARE)
    return fit is not None and fit.kv_gib < -ERROR * fit.budget_gib


def _weights_too_large(match: re.Match[str], config: ServeConfig) -> Finding:
    narrow = fit_in_16_bit(config)
    advice = (
        f"a quantised checkpoint, or more GPUs for an engine; a lower {SHARE} does not help. If the "
        "checkpoint is quantised, check that its own config is read (--hf-config-path, --quantization)"
    )
    return Finding(
        rule="M2",
        klass="gated" if narrow else "note",
        severity="error",
        why="the log shows an out of memory of the GPU: the weights do not fit the GPU in "
        + ("float32, and do in 16 bit" if narrow else "the format in which they are read"),
        to=narrow,
        expects="it starts, with half the memory for weights" if narrow else advice,
        risks="answers may differ from those in float32" if narrow else "none known",
        source=f"{CONSERVING_MEMORY}; vllm-project/vllm#16128",
        evidence={"line": match[0][:160]},
    )


def _read_whole(config: ServeConfig) -> float | None:
    """GiB of 16-bit weights on a GPU while a release quantises them, if that is more than the GPU has.

    Before 0.16 `--quantization fp8` reads all of them first; 0.13 and 0.14 keep the FP8 copies beside them.
    """
    start, total = config.start or StartFacts(), _total_gib(config)
    later = start.loaded or start.stage in {"profile", "graphs"} or not is_older_than(config, _BY_LAYER_SINCE)
    if text_of(config, "quantization") != "fp8" or total is None or later:
        return None
    if config.model is None or config.model.quantization:
        return None
    plain = {knob: value for knob, value in config.setting.items() if knob != "quantization"}
    weights = weights_gib(replace(config, setting=plain), layout(config))
    if weights is None:
        return None
    peak = weights * (_WITH_COPIES if is_at_least(config, _COPIES_SINCE) else 1.0)
    return peak if peak > _SAFE * total else None


def _quantised_too_late(match: re.Match[str], whole: float) -> Finding:
    return Finding(
        rule="M2",
        severity="error",
        why="the log shows an out of memory of the GPU: this release reads the 16-bit weights before "
        f"--quantization fp8 makes them smaller, and takes up to {whole:.0f} GiB of a GPU meanwhile",
        expects="a checkpoint that is in FP8 already, more GPUs for an engine, or vLLM 0.16 or later, which "
        f"quantises each layer as it is read; a lower {SHARE} does not help",
        risks="none known",
        source="vllm-project/vllm#32773; vllm-project/vllm#31914; vllm-project/vllm#31273",
        evidence={"line": match[0][:160], "peak_gib": round(whole, 1)},
    )


def _reads_images(config: ServeConfig) -> bool:
    encodes = config.model is not None and config.model.architecture.endswith("ForConditionalGeneration")
    return encodes and config.setting.get("language_model_only") is not True


LINTS = (
    recogniser(
        "F5",
        r"CUDA out of memory.{0,300}?\b(?P<dummies>\d{1,9}) dummy requests",
        _warm_up_failure,
        reports="out of memory in the warm-up, which runs as many requests as max_num_seqs",
        source="vllm/v1/worker/gpu_model_runner.py: 'CUDA out of memory occurred when warming up'",
        evidence_for="vLLM names the two flags; no public measurement of the values",
    ),
    recogniser(
        "M2",
        OUT_OF_MEMORY,
        _out_of_memory,
        reports="the GPU ran out of memory (CUDA, ROCm, XPU, Gaudi, TPU); the change is computed with the "
        "sizes in the log",
        source=CONSERVING_MEMORY,
        evidence_for="no public measurement of the steps 0.85 and 0.8, where the log has no sizes",
    ),
)
