"""Steps so large that a long prompt is one of them, and all other requests wait for it: rule P2."""

from collections.abc import Iterable

from flettner.lint.recogniser import LOG
from flettner.lint.rules.multimodal import WITH_VIDEO
from flettner.vllm_facts.log_counts import INTERVAL_S, read_counts
from flettner.vllm_facts.references import OPTIMIZATION
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_batched_tokens,
    effective_seqs,
    is_at_least,
    is_pooling,
    layout,
)
from flettner.vllm_facts.sizing.gpus import find_speed

LARGE, USUAL = 32768, 8192  # tokens of a step: P2 asks about more, and proposes this
HELD, PAUSES = 0.1, 2  # of the best pace, and counts in a row
LONG_S = 3.0  # seconds without a token that a reader notices
REACHED = 0.5  # of the peak throughput of a GPU
SPLITS_SINCE = (0, 9)  # prompts over several steps, without a flag
SPLITS_MEDIA_SINCE = (0, 17)  # an image larger than a step waits for ever before


def _find_budget(config: ServeConfig) -> int | None:
    """The tokens of a step, if they are many and prompts may be split."""
    budget, seqs = effective_batched_tokens(config), effective_seqs(config)
    if budget is None or budget < LARGE or (seqs is not None and not 1 < seqs <= USUAL):
        return None
    whole = config.setting.get("enable_chunked_prefill") is False or config.setting.get(
        "disable_chunked_mm_input"
    )
    prefills = "kv_producer" in str(config.setting.get("kv_transfer_config", ""))
    if whole or prefills or is_pooling(config) or not is_at_least(config, SPLITS_SINCE):
        return None
    return budget


def _check_pauses(config: ServeConfig) -> Iterable[Finding]:
    """By the log: requests that run get no token until a prompt of thousands of tokens is counted."""
    counts, budget = read_counts(config.log), _find_budget(config)
    if budget is None:
        return
    best, paused = max((each.answers for each in counts), default=0.0), 0
    for each in counts:
        slow = each.running > 1 and each.answers < HELD * best
        if slow:
            paused += 1
        if paused >= PAUSES and USUAL <= each.prompts * INTERVAL_S <= 4 * budget:
            yield _make_finding(config, paused, budget)
            return
        if not slow:
            paused = 0


def _make_finding(config: ServeConfig, paused: int, budget: int) -> Finding:
    model = config.model
    text_only = model is not None and model.architecture not in WITH_VIDEO
    given = config.setting.get("max_num_batched_tokens") is not None
    given = given and (text_only or is_at_least(config, SPLITS_MEDIA_SINCE))
    return Finding(
        rule="P2",
        klass="gated" if given else "note",
        severity="warning" if given else "info",
        why=(
            f"in {paused} counts of the log in a row running requests got hardly a token, until a long "
            f"prompt was done: a step takes up to {budget:,} tokens, and nobody gets one before it ends"
        ),
        to={"max_num_batched_tokens": USUAL} if given else {},
        expects=(
            f"steps of {USUAL:,} tokens let the answers of others go on between them; 2048 to 4096 for a "
            "still shorter pause"
        ),
        risks="long prompts take a little longer",
        evidence={"counts": paused, "max_num_batched_tokens": budget},
    )


def _check_step_time(config: ServeConfig) -> Iterable[Finding]:
    """A remark before any log: how long a step full of prompts takes."""
    model, card, budget = config.model, config.card, _find_budget(config)
    if budget is None or model is None or card is None or config.log or config.profile == "batch":
        return
    speed = find_speed(card)
    if speed is None:
        return
    active, shape = model.active_parameters or model.parameters, layout(config)
    if not active or config.setting.get("max_num_batched_tokens") is None:
        return
    seconds = 2 * active * budget / (speed.tflops * 1e12 * REACHED * shape.tp)
    if seconds < LONG_S:
        return
    yield Finding(
        rule="P2",
        why=(
            f"max_num_batched_tokens {budget}: a step full of prompts takes about {seconds:.0f} s on "
            f"{shape.tp} x {card.name}, in which nobody else gets a token"
        ),
        expects=(
            f"where answers are read while they come, {USUAL} keeps such pauses short, and leaves memory of "
            "the activations to the KV cache; for batches without readers large steps are right"
        ),
        risks="long prompts take a little longer with smaller steps",
        evidence={"max_num_batched_tokens": budget, "seconds": round(seconds, 1)},
    )


LINTS = (
    DeploymentCheck(
        rules=("P2",),
        find=_check_pauses,
        reports="answers that pause while a prompt is computed in one large step, by the log",
        source=f"{OPTIMIZATION} (chunked prefill); vllm-project/vllm#21495",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("P2",),
        find=_check_step_time,
        reports="steps so large that other requests wait for seconds",
        source=f"{OPTIMIZATION} (chunked prefill)",
        needs=Needs(facts=("gpu", "model")),
    ),
)
