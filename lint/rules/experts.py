"""Mixtures of experts and latent attention: rules D6, D7 and D8."""

from collections.abc import Iterable

from flettner.lint.missing_facts import ESTIMATE
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import AMD_MOE, DATA_PARALLEL, DOCS, RECIPES
from flettner.vllm_facts.serve_config import Finding, Model, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    active_share,
    is_expert_parallel,
    is_sparse,
    is_split,
    is_too_sparse,
    layout,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.parallel_layouts import (
    FEW,
    LATENT,
    exceeds_host,
    has_padded_heads,
    is_busy,
    is_single_host,
    plan_changes,
    suggest_latent,
)

WIDE = 8
SEVERAL, FEW_FOR_EACH = 4, 4  # engines, and requests at once for each
_LEAST_PART = 256  # columns of an expert on one GPU: vllm-project/vllm#28887
MANY = 512  # requests at once; AMD_MOE: the crossover is between 256 and 512


def _check_expert_density(config: ServeConfig) -> Iterable[Finding]:
    model = config.model
    given = is_expert_parallel(config)
    if model is None or layout(config).tp * layout(config).dp == 1:
        return
    if not is_too_sparse(config):
        yield from _check_whole_experts(config, model)
        return
    if not given and config.profile != "wide-ep":
        return  # else W1 would ask for it
    asks, density = "--enable-expert-parallel" if given else "the profile wide-ep", active_share(model)
    yield Finding(
        rule="D6",
        klass="gated",
        severity="warning" if given else "info",
        why=(
            f"{asks} with {model.name}: {model.active_experts} of {model.experts} experts "
            f"are active for a token ({density:.2%}): whole experts on each GPU may cost more than they save"
        ),
        to={"enable_expert_parallel": None} if given else {},
        expects="reported: 7 to 12 % more throughput without it on Llama-4-Maverick (0.78 %), not promised",
        risks="each expert is split over the GPUs: measure where the batches are very large",
        evidence={"density": density},
    )


def _check_whole_experts(config: ServeConfig, model: Model) -> Iterable[Finding]:
    """A note: within one tensor parallel group whole experts save no exchange, and tokens choose unevenly."""
    now = layout(config)
    others = any(config.setting.get(knob) for knob in ("enable_eplb", "all2all_backend", "eplb_config"))
    if not is_expert_parallel(config) or now.dp > 1 or others or is_busy(config):
        return
    failed = config.start is not None and not config.start.serves
    if failed or not _splits_experts(model, now.tp):
        return  # speed is no help to a server that fails
    yield Finding(
        rule="D6",
        why=(
            f"--enable-expert-parallel with TP {now.tp} in one engine: the exchange stays, and each step "
            "waits for the GPU whose experts got the most tokens"
        ),
        expects=(
            "compare without it: TTFT and throughput of DeepSeek-R1 on 8 H200 were better at every number of "
            "requests; with data parallel attention, or over several hosts, it pays"
        ),
        risks="each expert is split over the GPUs, which small experts suffer from",
        source="vllm-project/vllm#28887",
        evidence={"tensor_parallel_size": now.tp},
    )


def _splits_experts(model: Model, tensor: int) -> bool:
    """Whether each GPU's part of an expert is one that kernels compute: whole blocks, and not tiny."""
    width = model.moe_intermediate
    if not width or width % tensor or (model.quantization and model.weight_block is None):
        return False
    part, block = width // tensor, model.weight_block[0] if model.weight_block else 1
    return part % block == 0 and part >= _LEAST_PART


def _check_latent_attention(config: ServeConfig) -> Iterable[Finding]:
    model, now, plan = config.model, layout(config), suggest_latent(config)
    if model is None or now.tp == 1 or exceeds_host(config) or not model.mla:
        return
    if plan is None:
        yield from _context_parallel_findings(config, model)
        return
    copied = ""
    if model.latent_dim and model.layers:
        per_token_kib = model.latent_dim * model.layers * 2 / 1024
        copied = f" ({per_token_kib:.0f} KiB a token in 16 bit, {now.tp} times)"
    why = f"{model.name} has latent attention: with TP {now.tp} every GPU holds the full KV cache"
    to = plan_changes(config) if is_busy(config) else {}
    by_hand = f" (--data-parallel-size {plan.layout.dp} --enable-expert-parallel instead of TP)"
    lower_share = (
        "; gpu_memory_utilization changes too, because vLLM does not account for the exchange's buffers"
    )
    yield Finding(
        rule="D7",
        klass="gated" if to else "note",
        severity="warning" if is_busy(config) else "info",
        why=why
        + copied
        + ("; FlashMLA-Sparse also pads 16 heads of a GPU to 64" if has_padded_heads(config) else ""),
        to=to,
        expects=f"the KV cache is partitioned: about {now.tp} times the tokens, more throughput under load"
        + ("" if to else by_hand)
        + (lower_share if "gpu_memory_utilization" in to else ""),
        risks="each GPU holds all attention weights; at low concurrency TP is faster",
        evidence={"tensor_parallel_size": now.tp, "latent_dim": model.latent_dim},
    )


def _context_parallel_findings(config: ServeConfig, model: Model) -> Iterable[Finding]:
    """Decode context parallelism, if data parallelism would not hold the weights."""
    now, took = layout(config), estimate_fit(config)
    few = config.concurrency is not None and config.concurrency <= FEW
    if took is None or took.fits is False or now.tp < LATENT or few or not is_sparse(config) or now.pp > 1:
        return
    if (positive_int(config.setting, "decode_context_parallel_size") or 1) > 1:
        return
    yield Finding(
        rule="D7",
        why=(
            f"{model.name} has latent attention: with TP {now.tp} every GPU holds the full KV cache, and "
            "data parallel attention would not leave memory for it here"
        ),
        expects=(
            f"--decode-context-parallel-size {now.tp} partitions it within TP where the attention backend "
            "supports it (reported: 43 % more tokens/s with Kimi-K2-Thinking over 8, not promised)"
        ),
        risks="one more exchange in each step",
        source=(
            f"{DOCS}/serving/context_parallel_deployment/; {RECIPES} models/moonshotai/Kimi-K2-Thinking.yaml"
        ),
        evidence={"tensor_parallel_size": now.tp, "kv_tokens": took.kv_tokens},
    )


def _check_crossover(config: ServeConfig) -> Iterable[Finding]:
    now, at_once = layout(config), config.concurrency
    if at_once is None:
        yield from _check_logged_load(config)
        return
    if now.tp > 1 and at_once >= MANY:
        why = f"{at_once:.0f} requests at once with TP {now.tp}: from {MANY} on data parallelism is faster"
    elif now.tp == 1 and now.dp > 1 and at_once <= FEW and is_sparse(config):
        why = (
            f"{at_once:.0f} requests at once over {now.dp} engines: up to {FEW} tensor parallelism is faster"
        )
    elif now.tp >= WIDE and at_once <= FEW and config.model and config.model.mla:
        why = (
            f"{at_once:.0f} requests at once: up to {FEW} tensor parallelism {now.tp} is faster even with MLA"
        )
    else:
        return
    yield Finding(
        rule="D8",
        klass="gated",
        why=why,
        expects="measure both layouts at this load; the crossover was between 256 and 512 requests",
        risks="the crossover was measured on 8 x MI300X and differs on other GPUs",
        evidence={"concurrency": at_once, "tensor_parallel_size": now.tp, "data_parallel_size": now.dp},
    )


def _check_logged_load(config: ServeConfig) -> Iterable[Finding]:
    """Few requests at once by the log or the flags: only one engine computes the attention of each."""
    now, most, by = layout(config), config.start.most_at_once if config.start else None, "by the log"
    if most is None:
        most, by = positive_int(config.setting, "max_num_seqs"), "by max_num_seqs"
    engines = now.tp == 1 and now.dp >= SEVERAL and is_sparse(config) and is_single_host(config)
    if most is None or most > FEW_FOR_EACH or not engines or is_busy(config):
        return
    yield Finding(
        rule="D8",
        why=(
            f"at most {most} requests at once for an engine {by}, and {now.dp} engines of one GPU: "
            "each prompt is computed by one of them, and a later request finds its prefix only there"
        ),
        expects=(
            f"with so few --tensor-parallel-size {now.dp} in the place of --data-parallel-size answers "
            f"sooner; up to {FEW} requests at once it had more throughput, too"
        ),
        risks="with hundreds at once data parallelism is faster; the crossover was measured on 8 x MI300X",
        evidence={"data_parallel_size": now.dp, "most_at_once": most},
    )


LINTS = (
    DeploymentCheck(
        rules=("D6",),
        find=_check_expert_density,
        reports="expert parallelism where at most 1 % of the experts are active for a token",
        source=AMD_MOE,
        evidence_for=(
            f"7 to 12 % less throughput with it on Llama-4-Maverick (0.78 % active, 8 MI300X, {AMD_MOE}); a "
            "longer TTFT even at 3.1 % (DeepSeek-R1, 8 H200, vllm-project/vllm#28887)"
        ),
        evidence_against=(
            f"recommended above 3 % ({AMD_MOE}); "
            f"{RECIPES} models/Qwen/Qwen3.5-397B-A17B.yaml uses it at 1.95 %; "
            "22 % more tokens with DeepSeek-V4-Flash on 2 H100 (kaito-project/kaito#2305)"
        ),
        needs=Needs(facts=("model",), applies=is_split),
    ),
    DeploymentCheck(
        rules=("D7",),
        find=_check_latent_attention,
        reports="latent attention (MLA) with tensor parallelism, which copies the KV cache to every GPU",
        source=f"{AMD_MOE}; {DATA_PARALLEL}; {RECIPES} DeepSeek/DeepSeek-V3_2.md (the padded heads)",
        evidence_for=(
            "47 % more throughput of DeepSeek-R1 with data and expert parallelism at 1,024 requests at once "
            f"(8 MI300X, {AMD_MOE})"
        ),
        evidence_against=(
            f"at 64 requests tensor parallelism has 52 % more ({AMD_MOE}); {RECIPES} begin with TP 8 for "
            "DeepSeek-V3 and R1, Kimi-K2 and GLM-5"
        ),
        needs=Needs(facts=("model",), for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D8",),
        find=_check_crossover,
        reports="tensor parallelism for many requests at once, data parallelism for few",
        source=AMD_MOE,
        evidence_for=(
            "of DeepSeek-R1, Qwen3-235B and Llama-4-Maverick on 8 MI300X: up to 128 requests at once tensor "
            f"parallelism has 40 to 86 % more throughput, from 512 on data parallelism 16 to 47 % ({AMD_MOE})"
        ),
        evidence_against="no public measurement of the crossover on other GPUs",
    ),
)
