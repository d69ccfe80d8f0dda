"""The memory of a deployment before it starts: weights, KV cache and the requests that fit.

One GPU takes `gpu_memory_utilization` of its memory: weights, what the largest step needs, CUDA graphs (since
vLLM 0.20), and the rest is KV cache (v1/worker/gpu_worker.py: determine_available_memory). Weights and bytes
of a token are exact to about 1 %; the overhead is an estimate, so an answer that hangs on it is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.dtypes import AMPERE, dtype_in_force, type_without_float16
from flettner.vllm_facts.sizing.effective_flags import (
    Layout,
    effective_batched_tokens,
    effective_seqs,
    is_older_than,
    layout,
    memory_share,
    number_of,
)
from flettner.vllm_facts.start_facts import StartFacts
from flettner.vllm_facts.values import Knob, Value

GIB = 2**30

USABLE = 0.99
"""Visible share of the memory by nvidia-smi: 79.2 of 79.65 GiB on an H100, 14.7 of 15.0 on a T4."""

RUNTIME_GIB = 0.3
"""Outside PyTorch: 0.25 to 0.33 GiB in start-up logs (vllm-project/vllm issues 13061 and 14452)."""

EXCHANGE_GIB = {"nvlink": 2.0, "pcie": 0.5, None: 1.0}
"""Memory of NCCL and the all-reduce, by the link of the GPUs: 1.8 GiB more with two H100 (vllm PR 10511)."""

GRAPHS_GIB = 0.5
"""CUDA graphs: 0.36 to 0.58 GiB estimated at start in logs of 0.27 to 0.29; more on the largest models."""
GRAPHS_SINCE = (0, 20)

SAMPLER_BYTES = 16
VOCABULARY = 152_000
"""Warming up the sampler takes about 16 bytes for each of max_num_seqs and the vocabulary, logits and sorted
copies: 0.57 GiB for 256 sequences of Qwen3-4B (log in vllm PR 57047). 152,000 is Qwen's vocabulary."""

ERROR = 0.05
"""Error of the estimated KV cache as a share of the budget; twice that if an image encoder is profiled too.
tests/unit/vllm_facts/test_kv_cache.py compares it with start-up logs. The outlier: gpt-oss-120b on H100 with
vLLM 0.11, 8 % less than said here, for the workspace of its 4-bit kernels."""

MEASURED_ERROR = 0.1
"""Error of the KV cache of one request, where the memory for all of it is known from the log."""

_WIDTHS = {
    "auto": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "bfloat16": 2.0,
    "float32": 4.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "fp8_per_token_head": 1.0,
    "int8_per_token_head": 1.0,
    "int4_per_token_head": 0.5,
    "fp8_ds_mla": 656 / 576,
    "nvfp4": 0.5625,
}
"""Bytes of one number in the KV cache, by `--kv-cache-dtype`."""

_SLIDING = (
    *(
        "Afmoe",
        "Cohere2",
        "Cohere3",
        "DeepseekV4",
        "Exaone4",
        "Gemma2",
        "Gemma3",
        "Gemma4",
        "GptOss",
        "Llama4",
    ),
    *("MiMoV2", "MiniMaxM3", "Ministral", "Olmo3", "Step3p5", "Step3p7"),
)
"""Architectures with layers that keep only a window or a part: they hold more tokens than is counted here."""

_ONLINE = {"fp8": 1.03, "experts_int8": 1.03, "bitsandbytes": 0.6}
"""Bytes of a parameter of a 16-bit model that `--quantization` makes smaller while it loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheFit:
    """The division of a GPU's memory, and the capacity of an engine. Sizes are per GPU."""

    fits: bool | None  # the start, with one request of full length; None: too close to tell
    budget_gib: float
    weights_gib: float
    overhead_gib: float
    kv_gib: float  # below 0: the missing amount
    kv_bytes: float  # of one token
    kv_tokens: int  # per engine
    full_length_sequences: float | None  # None: the longest request is unknown
    bound: Literal["about", "at least", "at most"]  # of kv_tokens
    why: str


def estimate_fit(
    config: ServeConfig, *, shape: Layout | None = None, share: float | None = None
) -> KvCacheFit | None:
    """Estimate the GPU memory of `config`; `shape` and `share` override its own. None if facts are missing.

    Excludes a draft model, LoRA adapters, the image encoder's profile and other processes on the GPU.
    """
    model, shape = config.model, shape or layout(config)
    share = memory_share(config) if share is None else share
    weights, each, overhead, measured = _calibrated_sizes(config, shape)
    if model is None or config.card is None or config.card.memory_gib is None:
        return None
    if weights is None or each is None or overhead is None:
        return None
    visible = _visible_gib(config, config.start) or 0.0
    budget, given = visible * share, number_of(config, "kv_cache_memory_bytes")
    if given is not None:
        budget = min(weights + overhead + given / GIB, visible)
    kv = budget - weights - overhead
    most, bound = longest_request(config), _bound(config, model)
    error = budget * ERROR * (2 if model.architecture.endswith("ForConditionalGeneration") else 1)
    if _is_measured(config, shape, share):
        error = min(error, MEASURED_ERROR * (most or 0) * each / GIB)
    tokens = max(0, int(kv * GIB / each))
    return KvCacheFit(
        fits=_is_logged_to_fit(config, shape, share)
        or _judge_fit(kv - (most or 0) * each / GIB, kv, error, bound, has_length=most is not None),
        budget_gib=budget,
        weights_gib=weights,
        overhead_gib=overhead,
        kv_gib=kv,
        kv_bytes=each,
        kv_tokens=tokens,
        full_length_sequences=None if most is None else tokens / most,
        bound=bound,
        why=_explain(config.card.name, budget, weights, overhead, tokens if kv > 0 else None, most, bound)
        + measured,
    )


def fit_in_16_bit(config: ServeConfig) -> Mapping[Knob, Value]:
    """The dtype that makes weights fit which in float32 do not; empty if none does."""
    if dtype_in_force(config) != "float32" or type_without_float16(config.model) or config.card is None:
        return {}
    narrow = "half" if (config.card.capability or AMPERE) < AMPERE else "bfloat16"
    start = config.start and replace(config.start, weights_gib=None, kv_gib=None)
    fit = estimate_fit(replace(config, setting={**config.setting, "dtype": narrow}, start=start))
    return {"dtype": narrow} if fit is not None and fit.fits else {}


def _is_measured(config: ServeConfig, shape: Layout, share: float) -> bool:
    """Whether the log says how much memory is left for the KV cache with these flags."""
    start = config.start
    if start is None or start.kv_gib is None:
        return False
    then = replace(config, setting=start.setting, start=None)
    return layout(then) == shape and share == memory_share(then)


def _is_logged_to_fit(config: ServeConfig, shape: Layout, share: float) -> bool:
    """Whether the log says that a request of this length fits at this share, or at a lower one."""
    start, most = config.start, longest_request(config)
    if start is None or start.longest is None or most is None or most > start.longest:
        return False
    then = replace(config, setting=start.setting, start=None)
    same = all(config.setting.get(knob) == then.setting.get(knob) for knob in ("kv_cache_dtype", "dtype"))
    return same and layout(then) == shape and share >= memory_share(then)


def _visible_gib(config: ServeConfig, start: StartFacts | None) -> float | None:
    """The memory of one GPU that programs see."""
    if start is not None and start.total_gib:
        return start.total_gib
    return config.card.memory_gib * USABLE if config.card and config.card.memory_gib else None


def _calibrated_sizes(
    config: ServeConfig, shape: Layout
) -> tuple[float | None, float | None, float | None, str]:
    """Weights, bytes of a token and overhead, corrected by what the log of a start measured, and a remark.

    The weights and the KV cache are off by the same factor in every layout, the overhead by the same amount.
    """
    weights, each = weights_gib(config, shape), kv_bytes_per_token(config, shape)
    overhead, start = overhead_gib(config, shape), config.start
    if start is None or weights is None or each is None or overhead is None:
        return weights, each, overhead, ""
    then = replace(config, setting=start.setting, start=None)
    before = layout(then)
    sizes = weights_gib(then, before), kv_bytes_per_token(then, before), overhead_gib(then, before)
    if sizes[0] is None or sizes[1] is None or sizes[2] is None:
        return weights, each, overhead, ""
    told: list[str] = []
    if start.weights_gib and sizes[0] > 0:
        weights *= start.weights_gib / sizes[0]
        told.append("the weights")
    if start.kv_gib and start.kv_tokens and not (config.model and config.model.hybrid):
        engines = start.kv_gib * GIB / start.kv_tokens
        each *= engines / sizes[1]
        told.append("the KV cache")
    total = _visible_gib(config, start)
    if start.kv_gib is not None and total and number_of(then, "kv_cache_memory_bytes") is None:
        spent = total * memory_share(then) - start.kv_gib - (start.weights_gib or sizes[0])
        if spent < 0 < sizes[0] and not start.weights_gib:  # they are smaller than estimated
            weights *= max(0.0, 1 + spent / sizes[0])
        overhead = max(0.0, overhead + spent - sizes[2])
        told.append("the rest of the work")
    return weights, each, overhead, f" (measured by the log: {', '.join(told)})" if told else ""


def estimate_state_blocks(config: ServeConfig) -> tuple[int, int] | None:
    """The least and the most blocks of a hybrid's cache; each sequence needs one. None if facts are missing.

    All layers of a group have blocks of one size, that of a recurrent state, which attention's blocks are
    enlarged to. A group has as many layers as there are of attention.
    """
    model, fit, shape = config.model, estimate_fit(config), layout(config)
    if (
        model is None
        or fit is None
        or not model.hybrid
        or not model.state_bytes
        or not model.attention_layers
    ):
        return None
    block = model.state_bytes / shape.tp * ceil(model.attention_layers / shape.pp) / GIB
    error = fit.budget_gib * ERROR
    return max(0, int((fit.kv_gib - error) / block)), max(0, int((fit.kv_gib + error) / block))


def weights_gib(config: ServeConfig, shape: Layout) -> float | None:
    """Per GPU. Tensor and pipeline parallelism divide the weights, data parallelism only the experts."""
    model, size = config.model, _weight_bytes(config)
    if model is None or not model.parameters or size is None:
        return None
    routed = _expert_parameters(model)
    if routed is None and shape.dp > 1:
        return None
    # without expert parallelism, too: vLLM then divides each expert over tp * dp GPUs
    # (model_executor/layers/fused_moe/config.py: FusedMoEParallelConfig.make)
    experts = (routed or 0.0) / (shape.tp * shape.dp)
    dense = (model.parameters - (routed or 0.0)) / shape.tp
    gib = (experts + dense) * size / GIB * _stage_fraction(model.layers, shape.pp)
    return max(0.0, gib - max(0.0, number_of(config, "cpu_offload_gb") or 0.0))


def kv_bytes_per_token(config: ServeConfig, shape: Layout) -> float | None:
    """Per GPU. Heads are divided, at least one per GPU; a latent (MLA) is copied to every GPU."""
    model, width = config.model, _kv_element_bytes(config)
    if model is None or width is None:
        return None
    layers = model.attention_layers if model.hybrid else model.layers
    if model.mla:
        numbers = model.latent_dim
    elif model.kv_heads and model.head_dim:
        numbers = 2 * max(1, model.kv_heads // shape.tp) * model.head_dim
    else:
        numbers = None
    if not layers or not numbers:
        return None
    context = positive_int(config.setting, "decode_context_parallel_size") or 1
    return numbers * width * ceil(layers / shape.pp) / context


def overhead_gib(config: ServeConfig, shape: Layout) -> float | None:
    """Per GPU: activations of the largest step or of sampling, the runtime, CUDA graphs."""
    tokens, seqs = effective_batched_tokens(config), effective_seqs(config)
    if config.model is None or not config.model.hidden_size or tokens is None or seqs is None:
        return None
    step = tokens * activation_bytes(config.model, shape.tp)
    sampling = seqs * VOCABULARY * SAMPLER_BYTES
    graphs = 0.0 if config.setting.get("enforce_eager") or is_older_than(config, GRAPHS_SINCE) else GRAPHS_GIB
    together = shape.tp > 1 or (shape.gpus > 1 and bool(config.model.experts))
    exchange = EXCHANGE_GIB[config.card.link if config.card else None] if together else 0.0
    return max(step, sampling) / GIB + RUNTIME_GIB + exchange + graphs


def activation_bytes(model: Model, tp: int) -> float:
    """Bytes of one token in a forward pass, in 16 bit: 4 hidden states, an MLP 3.5 times as wide.

    An estimate: 0.9 GiB for 8,192 tokens of Llama 3 8B, a log shows 1.26 (vllm PR 10511).
    """
    hidden = model.hidden_size or 0
    chosen = model.active_experts or 0
    return 2.0 * hidden * (4 + 10.5 / tp + chosen * (1 + 1.5 / tp))


def longest_request(config: ServeConfig) -> int | None:
    """The effective max_model_len; None if unknown or chosen by vLLM."""
    given = config.setting.get("max_model_len")
    if given is not None:
        return positive_int(config.setting, "max_model_len")
    return config.model.max_len if config.model else None


def _expert_parameters(model: Model) -> float | None:
    """The parameters of all routed experts, from the share that is inactive for one token."""
    if not model.experts:
        return 0.0
    if not model.parameters or not model.active_parameters or not model.active_experts:
        return None
    idle = model.experts - model.active_experts
    return (model.parameters - model.active_parameters) * model.experts / idle if idle > 0 else None


def _stage_fraction(layers: int | None, pp: int) -> float:
    """The share of the largest pipeline stage."""
    return ceil(layers / pp) / layers if layers else 1 / pp


def _weight_bytes(config: ServeConfig) -> float | None:
    stored = config.model.weight_bytes if config.model else None
    if stored is None or (config.model and config.model.quantization):
        return stored
    wanted = config.setting.get("quantization")
    if wanted:
        return _ONLINE.get(str(wanted))
    return 4.0 if dtype_in_force(config) == "float32" else stored


def _kv_element_bytes(config: ServeConfig) -> float | None:
    kind = str(config.setting.get("kv_cache_dtype") or "auto")
    if kind == "auto" and dtype_in_force(config) == "float32":
        return 4.0
    return _WIDTHS.get(kind)


def keeps_windows(config: ServeConfig) -> bool:
    """Whether the model is known to have layers that keep only a window."""
    name = str(config.setting.get("model", "")).lower().replace("-", "").replace("_", "")
    by_name = any(each.lower() in name for each in _SLIDING)
    return _has_windows(config.model) if config.model else by_name


def _has_windows(model: Model) -> bool:
    return model.architecture.startswith(_SLIDING)


def _bound(config: ServeConfig, model: Model) -> Literal["about", "at least", "at most"]:
    if model.hybrid:  # the recurrent states take a part of the cache
        return "at most"
    windows = _has_windows(model)
    return "at least" if windows and not config.setting.get("disable_hybrid_kv_cache_manager") else "about"


def _judge_fit(spare: float, kv: float, error: float, bound: str, *, has_length: bool) -> bool | None:
    if kv < -error:
        return False
    if not has_length:
        return None
    if spare > (2 * error if bound == "at most" else error):
        return True
    return False if spare < -error and bound != "at least" else None


def _explain(
    card: str,
    budget: float,
    weights: float,
    overhead: float,
    tokens: int | None,
    most: int | None,
    bound: str,
) -> str:
    spent = (
        f"weights take {weights:.1f} GiB and the rest of the work about {overhead:.1f} of {budget:.1f} GiB"
    )
    if tokens is None:
        return (
            f"{spent} on each {card}: {weights + overhead - budget:.1f} GiB are missing before any KV cache"
        )
    held = f"{spent} on each {card}, which leaves {bound} {_round_tokens(tokens):,} tokens of KV cache"
    return held if most is None else f"{held}: {tokens / most:.1f} requests of {most:,}"


def _round_tokens(tokens: int) -> int:
    """Round to three digits, the accuracy of the estimate."""
    return round(tokens, 3 - len(str(tokens)))
