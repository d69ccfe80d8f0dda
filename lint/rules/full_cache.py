"""What helps requests that wait for a full KV cache, as the log shows: text of F8, rules K1 and L1."""

from collections.abc import Iterable

from flettner.lint.missing_facts import ESTIMATE
from flettner.lint.recogniser import LOG
from flettner.lint.rules.known_errors import PINNED
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.log_counts import FULL, LEAST, read_counts
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.releases.history import has_flag
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    has_kv_transfer,
    is_pooling,
    layout,
    memory_share,
    text_of,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, weights_gib
from flettner.vllm_facts.sizing.limits import MOST_SHARE

_EIGHT_BITS, _FOUR_BITS = 1.0, 0.56  # bytes of a weight; four bits have a scale for each group
_RESERVE = 0.05  # of the blocks: with more than that the throughput falls again
FEW = 2  # requests of full length
_LENGTH, _SEQS = "max_model_len", "max_num_seqs"
_CONTEXT, _WATERMARK = "decode_context_parallel_size", "watermark"


def advise_full_cache(config: ServeConfig, *, running: int) -> str:
    """The remedies that this command leaves, those that cost nothing first."""
    return (
        f"the KV cache is full: more sequences would make it worse. {name_remedies(config)} hold more; else "
        f"max_num_seqs at about {running} keeps those that run from being computed again"
    )


def name_remedies(config: ServeConfig) -> str:
    """As the beginning of a sentence."""
    ways = [*_share_copies(config), *_take_more_memory(config), *_take_less_for_each(config)]
    text = f"{', '.join(ways[:-1])} or {ways[-1]}"
    return text[0].upper() + text[1:]


def _share_copies(config: ServeConfig) -> Iterable[str]:
    copies, flag = count_copies(config), _CONTEXT.replace("_", "-")
    if copies <= 1 or (positive_int(config.setting, _CONTEXT) or 1) > 1 or layout(config).pp > 1:
        return
    if has_flag(_CONTEXT, config.version) is not False:
        yield (
            f"--{flag} {copies} (each token is in the cache of {copies} GPUs now; where "
            "the attention backend supports it)"
        )
    if config.model is not None and config.model.mla:
        yield "data parallel attention in the place of tensor parallelism"


def count_copies(config: ServeConfig) -> int:
    """How many GPUs of a tensor parallel group hold the same keys and values; 1 if unknown."""
    model, tensor = config.model, layout(config).tp
    if model is None or model.hybrid:
        return 1
    if model.mla:
        return tensor
    heads = model.kv_heads
    return tensor // heads if heads and tensor > heads and tensor % heads == 0 else 1


def _take_more_memory(config: ServeConfig) -> Iterable[str]:
    given = config.setting.get(PINNED)
    if given is not None:
        yield f"no --{PINNED.replace('_', '-')} (it fixes the size, and the memory share has no effect)"
    elif memory_share(config) < MOST_SHARE:
        yield "a larger gpu_memory_utilization"


def _take_less_for_each(config: ServeConfig) -> Iterable[str]:
    if not text_of(config, "kv_cache_dtype").startswith(("fp8", "nvfp4", "turboquant")):
        yield "a KV cache in fp8"
    model, gib = config.model, weights_gib(config, layout(config))
    if gib is not None and model is not None and model.weight_bytes and model.weight_bytes >= _EIGHT_BITS:
        freed = gib * (1 - _FOUR_BITS / model.weight_bytes)
        yield "a smaller model"
        yield f"weights in 4 bits (about {freed:.0f} GiB less on each GPU: check the answers)"
    else:
        yield "a smaller model"
    yield "more GPUs"


def _check_preemptions(config: ServeConfig) -> Iterable[Finding]:
    """Requests whose cache is taken away are computed again from their beginning."""
    busy = [count for count in read_counts(config.log) if count.works]
    hit = [count for count in busy if count.preempted and (count.usage or 0.0) >= FULL]
    if len(hit) < LEAST or config.setting.get(_WATERMARK) or has_flag(_WATERMARK, config.version) is not True:
        return
    yield Finding(
        rule="K1",
        klass="gated",
        severity="warning",
        why=(
            f"in {len(hit)} of {len(busy)} counts of the log requests were preempted, {hit[-1].preempted} in "
            "the latest: the KV cache had no room for their next token, and they are computed again"
        ),
        to={_WATERMARK: _RESERVE},
        expects=f"new requests leave {100 * _RESERVE:g} % of the cache to those that run: 187 instead of "
        "1,065 preemptions and 5 % more tokens/s are reported, not promised",
        risks="requests wait longer for their first token",
        evidence={"preemptions": hit[-1].preempted, "counts": len(hit)},
    )


def _check_few_at_once(config: ServeConfig) -> Iterable[Finding]:
    """A remark before any log: a length that was asked for, of which the cache holds hardly one."""
    if config.log or config.concurrency is not None or is_pooling(config) or has_kv_transfer(config):
        return
    length, seqs = positive_int(config.setting, _LENGTH), positive_int(config.setting, _SEQS)
    if length is None or seqs is None or seqs <= FEW:
        return
    fit = estimate_fit(config)
    if fit is None or fit.fits is False or fit.kv_tokens >= FEW * length:
        return
    yield Finding(
        rule="L1",
        why=(
            f"by the estimate the KV cache holds about {fit.kv_tokens:,.0f} tokens: "
            f"{fit.kv_tokens / length:.1f} requests of {length:,}, although up to {seqs} may "
            "run. Few long requests fill it; then others wait, or are preempted and computed again"
        ),
        expects=f"{name_remedies(config)} hold more; more sequences would not help",
        risks="a smaller format of the cache or of the weights may change answers",
        evidence={"kv_tokens": round(fit.kv_tokens), _LENGTH: length},
    )


LINTS = (
    DeploymentCheck(
        rules=("L1",),
        find=_check_few_at_once,
        reports="a context length of which the KV cache holds hardly one request, by the estimate",
        source=f"vllm-project/vllm#14412; {DOCS}/configuration/optimization/ (preemption)",
        evidence_for="two requests fill the cache (a 32B model in FP8 on one L40, vllm-project/vllm#14412)",
        needs=Needs(facts=ESTIMATE, applies=has_any(_SEQS)),
    ),
    DeploymentCheck(
        rules=("K1",),
        find=_check_preemptions,
        reports="requests that are preempted, by the counts of the log",
        source=f"vllm/config/scheduler.py: watermark; {DOCS}/configuration/optimization/ (preemption)",
        evidence_for=(
            "ITL p99 falls from 41 to 18 ms, and tokens/s rise by 5 %, with a watermark of 0.05 "
            "(Qwen2.5-7B, GB200, vllm-project/vllm#44594)"
        ),
        evidence_against="TTFT p50 rises from 6.6 to 11.2 s there (vllm-project/vllm#44594)",
        needs=LOG,
    ),
)
