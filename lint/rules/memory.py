"""GPU memory and batch sizes: rules M4, M5, B1, B2, B3 and L1."""

import re
from collections.abc import Iterable
from dataclasses import replace

from flettner.lint.missing_facts import ESTIMATE
from flettner.lint.rules.profile import PROFILES, has_full_cache
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.log_counts import read_counts
from flettner.vllm_facts.references import DOCS, OPTIMIZATION, RECIPES
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, Needs, ServeConfig
from flettner.vllm_facts.sizing.capacity import fits_in_memory, kv_tokens_at, seqs_that_fit, surely_starts_at
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    draft_tokens,
    effective_batched_tokens,
    effective_seqs,
    has_any,
    has_kv_transfer,
    is_expert_parallel,
    is_older_than,
    is_sparse,
    is_transformer,
    layout,
    memory_share,
    number_of,
)
from flettner.vllm_facts.sizing.kv_cache import GIB, estimate_fit, estimate_state_blocks, longest_request
from flettner.vllm_facts.sizing.limits import MOST_SHARE, fair_share, name_others, shares_memory
from flettner.vllm_facts.sizing.parallel_layouts import SHORT, apply_plan, plan_changes, plan_layout
from flettner.vllm_facts.sizing.typical_requests import (
    FEW_SEQS,
    MOE_SHARE,
    SEQS_TO,
    SHARE,
    required_share,
)
from flettner.vllm_facts.values import Knob, Value

SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"
CONTEXT_GIB = 1.0  # left for the CUDA context, NCCL and peaks
DENSE_MOST = 0.92  # vLLM's default, which most recipes keep for mixtures of experts, too
BLOCKS_CHECKED = (0, 20)  # since vllm-project/vllm#38270; before, the graphs were cut off silently
FEW_TOKENS, TOKENS_TO = 512, 2048
SMALL_CARD_GIB = 16
_TAKES_MORE = re.compile(
    r"Arc\b|Data Center GPU Max|Gaudi"
)  # GPUs on which vLLM counts not all that it takes
_FAR = 8  # times fewer requests than may run: even one count says that the cap is not the limit
HEAVY = 0.25  # share of a small card that the weights of a hybrid model take


def _check_moe_share(config: ServeConfig) -> Iterable[Finding]:
    present = memory_share(config)
    if not is_sparse(config) or present <= DENSE_MOST or config.setting.get("kv_cache_memory_bytes"):
        return
    if not _has_exchange(config) or fits_in_memory(config, share=MOE_SHARE) is False:
        return
    above = present > MOST_SHARE and surely_starts_at(config, MOE_SHARE) is not False
    yield Finding(
        rule="M4",
        klass="auto" if above else "note",
        severity="warning" if above else "info",
        why=(
            f"{SHARE} {present:g} on a mixture of experts with an exchange between GPUs: its "
            "buffers lie outside vLLM's accounting"
        ),
        to={SHARE: MOE_SHARE} if above else {},
        expects=(
            "no OOM at high concurrency"
            if above
            else f"if memory runs out under load, lower it to {MOE_SHARE}; most recipes of vLLM keep the "
            "default or 0.9 to 0.95 with expert parallelism"
        ),
        risks="a smaller KV cache" + describe_kv_change(config, MOE_SHARE),
        evidence={SHARE: present},
    )


def _has_exchange(config: ServeConfig) -> bool:
    """Whether tokens of a mixture of experts travel between GPUs: with expert or data parallelism."""
    now = layout(config)
    return is_sparse(config) and now.gpus > 1 and (is_expert_parallel(config) or now.dp > 1)


def _check_share_maximum(config: ServeConfig) -> Iterable[Finding]:
    """M4 for dense models: vLLM's authors call up to 0.95 safe."""
    given = number_of(config, SHARE)
    if given is None or given <= MOST_SHARE or config.setting.get("kv_cache_memory_bytes"):
        return
    if fits_in_memory(config, share=DENSE_MOST) is False or _has_exchange(config):
        return  # the latter: see _check_moe_share
    size = config.card.memory_gib if config.card else None
    left = None if size is None else (1 - given) * size
    tight = left is not None and left < CONTEXT_GIB
    began = config.start is not None and (config.start.loaded or config.start.ran_out)  # M2 knows more of it
    cuda = config.card is not None and config.card.capability is not None  # its context takes a part of it
    never = cuda and tight and given >= 1 and not began
    lower = never or surely_starts_at(config, DENSE_MOST) is not False
    yield Finding(
        rule="M4",
        klass="auto" if lower else "note",
        severity="error" if never else "warning" if tight and lower else "info",
        why=(
            f"{SHARE} {given:g} leaves {1 - given:.0%} of the GPU"
            + ("" if left is None else f" ({left:.1f} GiB)")
            + " outside vLLM's accounting: it does not start where less is free (the CUDA context takes "
            "some), or runs out of memory at a peak"
        ),
        to={SHARE: DENSE_MOST} if lower else {},
        expects="a start wherever the GPU is free, and memory for a peak"
        + ("" if lower else f": {DENSE_MOST} barely holds one request of full length, so lower that as well"),
        risks="a smaller KV cache" + describe_kv_change(config, DENSE_MOST),
        evidence={SHARE: given},
    )


def _check_shared_card(config: ServeConfig) -> Iterable[Finding]:
    """M4: the shares of the servers on one GPU add up to more than all of it."""
    card = config.shared_card
    if card is None or config.setting.get("kv_cache_memory_bytes"):
        return
    present, fair = memory_share(config), fair_share(card)
    total = present + sum(other.share for other in card.others)
    if total <= 1 or present <= fair:
        return
    took = estimate_fit(config, share=fair)
    small = took.why if took is not None and took.fits is False else ""
    yield Finding(
        rule="M4",
        klass="note" if small else "auto",
        severity="error",
        why=(
            f"it runs on the same GPU as {name_others(card)}: with its {present:g} their shares add up to "
            f"{total:g}, so the last to start finds less free memory than it asks for"
        ),
        to={} if small else {SHARE: fair},
        expects=(
            f"with {fair:g} it would not start, either ({small}): give it another GPU"
            if small
            else "all of them start"
        ),
        risks="a smaller KV cache" + describe_kv_change(config, fair),
        source="vllm/v1/worker/utils.py: request_memory",
        evidence={SHARE: present},
    )


def _check_share_minimum(config: ServeConfig) -> Iterable[Finding]:
    given = number_of(config, SHARE)
    if config.start is not None and config.start.ran_out:
        config = replace(config, log=(), start=None)  # the error in the log outranks it, and that is said
    to = required_share(replace(config, setting={**apply_plan(config).setting, SHARE: given}))
    if given is None or to is None or shares_memory(config):
        return
    if config.card is not None and _TAKES_MORE.match(config.card.name):
        yield _leave_to_compiler(config.card.name, given)
        return
    took = estimate_fit(config)
    small = took is not None and took.fits is False
    yield Finding(
        rule="M5",
        klass="auto",
        severity="warning" if took is not None and not has_kv_transfer(config) else "info",
        why=f"{SHARE} {given:g} leaves {1 - given:.0%} of the GPU unused, "
        + ("and the server does not start with it" if small else "which could hold KV cache"),
        to={SHARE: to},
        expects="more sequences at once before requests wait or are preempted"
        + describe_kv_change(config, to),
        risks="an OOM where another process or a KV connector shares the GPU: keep the value there",
        evidence={SHARE: given},
    )


def _leave_to_compiler(name: str, given: float) -> Finding:
    return Finding(
        rule="M5",
        why=f"{SHARE} {given:g} leaves {1 - given:.0%} of {name} to what vLLM does not count there: the "
        "buffers of compiled kernels, which grow with each new shape of a step",
        expects=f"a higher {SHARE} only with the memory in sight over days: an Arc Pro B60 was full at 0.86, "
        "and not at 0.75",
        risks="an OOM under load",
        source="vllm/config/cache.py: gpu_memory_utilization; https://github.com/epsilonagentx/intel_arc_gpu_llm",
        evidence={SHARE: given},
    )


def describe_kv_change(config: ServeConfig, to: float) -> str:
    present, then = kv_tokens_at(config, memory_share(config)), kv_tokens_at(config, to)
    return (
        f" ({present:,.0f} tokens now, {then:,.0f} then)" if present is not None and then is not None else ""
    )


def _check_batch_sizes(config: ServeConfig) -> Iterable[Finding]:
    seqs, took, most = (
        positive_int(config.setting, SEQS),
        estimate_fit(apply_plan(config)),
        longest_request(apply_plan(config)),
    )
    if seqs is None or seqs > FEW_SEQS or not is_transformer(config) or took is None or most is None:
        return
    if has_full_cache(config) or _is_below_cap(config, seqs):
        return
    if (config.concurrency is not None and config.concurrency <= seqs) or _is_at_the_edge(config, took.fits):
        return
    room, least = seqs_that_fit(config) or 0, _minimum_batch_sizes(config)[1]
    to = next((value for value in (least, least // 2, 64, 32) if seqs * 2 <= value <= room), None)
    if to is None:
        return
    wanted: dict[Knob, Value] = {SEQS: to}
    tokens = positive_int(config.setting, TOKENS)
    if tokens is not None and tokens < to:
        wanted[TOKENS] = max(to, _minimum_batch_sizes(config)[0])
    alone = seqs == 1 and config.concurrency is None  # may be a choice for one person
    yield Finding(
        rule="B1",
        klass="note" if alone else "auto",
        severity="info" if alone or shares_memory(config) else "warning",  # few people, and a slow memory
        why=(
            f"{SEQS} {seqs} caps a transformer whose KV cache holds about {took.kv_tokens:,.0f} tokens: "
            f"{took.kv_tokens / most:.0f} requests of {most:,} and many more of typical length"
        ),
        to={} if alone else wanted,
        expects=(f"with {SEQS} {to} " if alone else "")
        + "more throughput under load, until the KV cache or the GPU is the limit",
        risks="ITL rises with the batch; preemptions if most requests are near the longest",
        evidence={SEQS: seqs, "kv_tokens": round(took.kv_tokens)},
    )


def _is_below_cap(config: ServeConfig, seqs: int) -> bool:
    """Whether the log counts requests, and never as many as may run."""
    most = config.start.most_at_once if config.start else None
    counts = read_counts(config.log)
    alone = bool(counts) and all(not each.waiting and _FAR * each.running <= seqs for each in counts)
    return alone or (most is not None and most < seqs)


def _is_at_the_edge(config: ServeConfig, fits: bool | None) -> bool:
    """Whether memory is nearly full by the estimate, or by what the flags already do about it."""
    offloads = bool(number_of(config, "cpu_offload_gb"))
    return fits is not True or offloads or memory_share(config) >= MOST_SHARE


def _minimum_batch_sizes(config: ServeConfig) -> tuple[int, int]:
    """The tokens and sequences that B3 and B1 propose: at least those of W1, if a profile is declared."""
    profile = PROFILES.get(config.profile)
    if profile is None:
        return TOKENS_TO, SEQS_TO
    return max(TOKENS_TO, profile.tokens[0]), max(SEQS_TO, profile.seqs[0])


def _check_hybrid_state(config: ServeConfig) -> Iterable[Finding]:
    model, card = config.model, config.card
    if model is None or not model.hybrid or card is None or card.memory_gib is None:
        return
    if card.memory_gib > SMALL_CARD_GIB or not model.parameters or not model.weight_bytes:
        return
    after = apply_plan(config)
    took = estimate_fit(after)
    none_left = took is not None and took.fits is False and took.kv_tokens < SHORT
    if none_left or model.parameters * model.weight_bytes / layout(after).tp < HEAVY * card.memory_gib * GIB:
        return
    wanted: dict[Knob, Value] = {}
    if (effective_seqs(config) or FEW_SEQS) > FEW_SEQS:
        wanted[SEQS] = FEW_SEQS
    if (effective_batched_tokens(config) or FEW_TOKENS) > FEW_TOKENS:
        wanted[TOKENS] = FEW_TOKENS
    fits = fits_in_memory(config, share=MOE_SHARE)
    if memory_share(config) > MOE_SHARE and (
        fits or (fits is None and not config.setting.get("max_model_len"))
    ):
        wanted[SHARE] = MOE_SHARE  # a length that was asked for has to fit for certain
    if config.setting.get("mamba_ssm_cache_dtype") in {"float16", "bfloat16"}:
        wanted["mamba_ssm_cache_dtype"] = "float32"
    if not wanted and config.profile not in PROFILES:
        return  # else W1 would ask for the template's values
    yield Finding(
        rule="B2",
        klass="gated" if "mamba_ssm_cache_dtype" in wanted else "auto",
        severity="warning" if SEQS in wanted else "info",
        why=(
            f"{model.name} is a hybrid: each of {effective_seqs(config)} sequences holds a state of fixed "
            f"size, and {card.name} has {card.memory_gib:g} GiB"
        ),
        to=wanted,
        expects="no OOM, and no 'max_num_seqs exceeds available Mamba cache blocks' at the start",
        risks=(
            "fewer requests at once and smaller steps: TTFT of long prompts rises; if the server "
            "works with more sequences, keep them"
        ),
        evidence={"memory_gib": card.memory_gib, SEQS: effective_seqs(config)},
    )


def _check_state_blocks(config: ServeConfig) -> Iterable[Finding]:
    """B2 before a start: CUDA graphs of full decode steps need a block of state for each sequence."""
    blocks, seqs = estimate_state_blocks(config), effective_seqs(config)
    if blocks is None or seqs is None or config.setting.get("enforce_eager"):
        return
    if config.start is not None and (config.start.state_blocks is not None or config.start.serves):
        return  # F5 has the number of the log, or the server runs
    least, most = blocks
    if seqs <= most or least < 1 or is_older_than(config, BLOCKS_CHECKED):
        return
    yield Finding(
        rule="B2",
        klass="auto",
        severity="error",
        why=(
            f"{SEQS} {seqs}{'' if config.setting.get(SEQS) else ' (the default)'} is more than the {least} "
            f"to {most} blocks of state that fit the KV cache of this hybrid: it does not start"
        ),
        to={SEQS: 1 << (least.bit_length() - 1)},
        expects="it starts; more memory or GPUs for an engine make more blocks",
        risks="fewer requests run at once",
        source="vllm/config/compilation.py: 'exceeds available Mamba cache'; vllm-project/vllm#49064",
        evidence={SEQS: seqs, "state_blocks": least},
    )


def _check_step_size(config: ServeConfig) -> Iterable[Finding]:
    tokens = positive_int(config.setting, TOKENS)
    hybrid = config.model is not None and config.model.hybrid
    seqs = positive_int(config.setting, SEQS)
    if tokens is None or tokens > FEW_TOKENS or hybrid or (seqs is not None and tokens < seqs):
        return  # the last is an error of its own
    if has_full_cache(config) or (tokens == seqs and has_kv_transfer(config)):
        return  # a larger step takes memory from a cache that is too small; a server that only decodes
    severity: FindingSeverity = (
        "warning" if is_transformer(config) and not has_kv_transfer(config) else "info"
    )
    yield Finding(
        rule="B3",
        klass="auto",
        severity=severity,
        why=f"{TOKENS} {tokens}: a prompt of 2,048 tokens takes {-(-2048 // tokens)} steps before it answers",
        to={TOKENS: _minimum_batch_sizes(config)[0]},
        expects="lower TTFT and more throughput; 2048 is vLLM's own least default",
        risks="ITL rises a little while prompts are computed; a little more memory for activations",
        evidence={TOKENS: tokens},
    )


def _check_draft_budget(config: ServeConfig) -> Iterable[Finding]:
    """B3 with speculation: each sequence takes 1 + drafts tokens of a step."""
    tokens, drafts = positive_int(config.setting, TOKENS), draft_tokens(config)
    seqs = effective_seqs(config)
    if tokens is None or seqs is None or not drafts or not seqs <= tokens < seqs * (1 + drafts):
        return
    if config.setting.get("enable_lora") is True:
        return  # vLLM refuses it: an error of its own
    needed = seqs * (1 + drafts)
    yield Finding(
        rule="B3",
        klass="auto",
        severity="warning",
        why=(
            f"{TOKENS} {tokens} holds {tokens // (1 + drafts)} of {seqs} sequences: with {drafts} drafted "
            f"tokens each takes {1 + drafts} tokens of a step"
        ),
        to={TOKENS: 1 << (needed - 1).bit_length()},
        expects="full batches keep their drafts, and prompts get a part of the step",
        risks="a little more memory for activations",
        source="vllm/v1/core/sched/scheduler.py: token_budget",
        evidence={TOKENS: tokens, SEQS: seqs, "drafts": drafts},
    )


def _check_context_length(config: ServeConfig) -> Iterable[Finding]:
    """L1 before a start: vLLM refuses a context length if no request of that length fits."""
    took, most, plan = estimate_fit(config), longest_request(config), plan_layout(config)
    if took is None or most is None or took.fits is not False:
        return
    if config.start is not None and (config.start.longest is not None or config.start.serves):
        return  # F4 has the number of the log, or the server runs
    if plan is None or plan.length is None or plan.layout != layout(config):
        return  # D2 or D3 reports it
    named = "the model's own length" if config.setting.get("max_model_len") is None else "--max-model-len"
    yield Finding(
        rule="L1",
        klass="gated",
        severity="error",
        why=(
            f"one request of {most:,} tokens ({named}) does not fit, so the server does not start: {took.why}"
        ),
        to=plan_changes(config),
        expects="it starts; more GPUs for an engine or a KV cache in fp8 (check the answers) hold more",
        risks="longer requests are refused: an operator decides which length is needed",
        evidence={"kv_tokens": took.kv_tokens, "max_model_len": most},
    )


LINTS = (
    DeploymentCheck(
        rules=("M4",),
        find=_check_moe_share,
        reports="gpu_memory_utilization above the default with experts on several GPUs",
        source="vllm-project/vllm#43222; uccl-project/uccl#924",
        evidence_for=(
            "DeepSeek-V2-Lite with data and expert parallelism ran out of memory (vllm-project/vllm#43222); "
            "DeepEP's buffers did not fit beside Kimi-K2.6 even at 0.7 (uccl-project/uccl#924)"
        ),
        evidence_against=(
            f"of 97 commands with expert or data parallelism in {RECIPES} 77 keep the default and 5 go down "
            "to 0.85"
        ),
        needs=Needs(facts=("model",), for_change=ESTIMATE),
    ),
    DeploymentCheck(
        rules=("M4",),
        find=_check_share_maximum,
        reports="gpu_memory_utilization above 0.95",
        source="vllm-project/vllm#1298 (0.9 to 0.95 is safe)",
        evidence_for="out of memory at 1.0 (vllm-project/vllm#1298, vllm-project/vllm#19186)",
        evidence_against=f"{RECIPES} inclusionAI/Ring-1T-FP8.md and others have 0.97 and 0.98 on large GPUs",
        needs=Needs(for_change=ESTIMATE, applies=has_any(SHARE)),
    ),
    DeploymentCheck(
        rules=("M4",),
        find=_check_shared_card,
        reports="servers of one file whose shares of a GPU add up to more than 1",
        source="vllm/v1/worker/utils.py: request_memory",
        needs=Needs(applies=lambda config: config.shared_card is not None),
    ),
    DeploymentCheck(
        rules=("M5",),
        find=_check_share_minimum,
        reports="gpu_memory_utilization that leaves memory unused",
        source=f"vllm/config/cache.py: gpu_memory_utilization (0.92 by default); {OPTIMIZATION}",
        evidence_for="no public measurement: the gain is that of the added KV cache",
        needs=Needs(for_change=ESTIMATE, applies=has_any(SHARE)),
    ),
    DeploymentCheck(
        rules=("B1",),
        find=_check_batch_sizes,
        reports="max_num_seqs far below what the KV cache holds",
        source=f"{DOCS}/configuration/engine_args/ (max_num_seqs); vllm-project/vllm#8031 (the capacity)",
        evidence_for=(
            "33 tokens/s in all at 2 sequences, 267 at 48 "
            "(MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#19); 31 % more audio at 32 than at 8 "
            "(vllm-project/vllm-omni#5071)"
        ),
        evidence_against="with more, the KV cache fills and requests are computed twice (ROCm/vllm#794)",
        needs=Needs(facts=ESTIMATE, applies=has_any(SEQS)),
    ),
    DeploymentCheck(
        rules=("B2",),
        find=_check_hybrid_state,
        reports="a hybrid (Mamba) model on a GPU of at most 16 GiB: each sequence holds a state",
        source=(
            "vllm/config/compilation.py: 'exceeds available Mamba cache'; "
            "vllm/model_executor/models/config.py: update_mamba_ssm_cache_dtype"
        ),
        evidence_for="no public measurement of 16 sequences and 512 tokens: they are values to begin with",
        needs=Needs(facts=("gpu", "model")),
    ),
    DeploymentCheck(
        rules=("B2",),
        find=_check_state_blocks,
        reports="a hybrid (Mamba, delta net) model with more sequences than its cache has blocks of state",
        source="vllm/config/compilation.py: 'exceeds available Mamba cache'; vllm-project/vllm#49064",
        evidence_for=(
            "1024 sequences against 856 blocks of Qwen3.6-27B-FP8 on an H100 (vllm-project/recipes#551)"
        ),
        needs=Needs(facts=ESTIMATE),
    ),
    DeploymentCheck(
        rules=("B3",),
        find=_check_step_size,
        reports="max_num_batched_tokens of at most 512",
        source="vllm/engine/arg_utils.py: get_batch_defaults; vllm-project/vllm#10544",
        evidence_for=(
            "vLLM raised its default from 512 to 2048, for throughput and long prompts "
            "(vllm-project/vllm#10544)"
        ),
        evidence_against=f"fewer tokens have a better ITL ({OPTIMIZATION})",
        needs=Needs(for_change=ESTIMATE, applies=has_any(TOKENS)),
    ),
    DeploymentCheck(
        rules=("B3",),
        find=_check_draft_budget,
        reports="max_num_batched_tokens below the tokens of a full batch with its drafts",
        source="vllm/v1/core/sched/scheduler.py: token_budget",
        needs=Needs(for_change=ESTIMATE, applies=has_any(TOKENS)),
    ),
    DeploymentCheck(
        rules=("L1",),
        find=_check_context_length,
        reports="a context length of which no request fits the KV cache",
        source="vllm/v1/core/kv_cache_utils.py: 'To serve at least one request'",
        needs=Needs(facts=ESTIMATE),
    ),
)
