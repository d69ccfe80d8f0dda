"""The pace of a server, by the counts in its log: rules F11 and P4."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from flettner.lint.recogniser import LOG
from flettner.vllm_facts.drafts import find_flags
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, effective_batched_tokens, layout
from flettner.vllm_facts.sizing.gpus import find_bandwidth
from flettner.vllm_facts.sizing.kv_cache import weights_gib
from flettner.vllm_facts.start_facts import LONGEST_LINE

THRESHOLD = "long_prefill_token_threshold"
INTERVAL_S = 10.0  # between two counts
NEAR = 0.5  # of the bandwidth: kernels reach 0.7 to 0.95 of it
HELD, STEPS = 0.1, 4  # of the best pace; steps that the prompt behind a pause takes at least
GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class _Count:
    prompts: float  # tokens/s
    answers: float
    running: int
    waiting: int


_COUNTS = re.compile(
    r"Avg prompt throughput: (\d+(?:\.\d*)?) tokens/s, Avg generation throughput: (\d+(?:\.\d*)?) tokens/s, "
    r"Running: (\d+) reqs?, Waiting: (\d+) reqs?"
)


def _read_counts(config: ServeConfig) -> list[_Count]:
    found = (_COUNTS.search(line[:LONGEST_LINE]) for line in config.log)
    return [
        _Count(float(each[1]), float(each[2]), int(each[3]), int(each[4]))
        for each in found
        if each is not None
    ]


def _check_bandwidth(config: ServeConfig) -> Iterable[Finding]:
    """One request reads all active weights for each token: no flag makes the memory faster."""
    model, card, shape = config.model, config.card, layout(config)
    alone = [each.answers for each in _read_counts(config) if (each.running, each.waiting) == (1, 0)]
    if model is None or card is None or not alone or shape.gpus > shape.tp:
        return
    if find_flags(config.setting):
        return
    size, bandwidth = weights_gib(config, shape), find_bandwidth(card)
    if not size or bandwidth is None or not model.parameters:
        return
    read = size * GIB * min(1.0, (model.active_parameters or model.parameters) / model.parameters)
    most, pace = bandwidth * 1e9 / read, max(alone)
    if not NEAR <= pace / most <= 1.0:
        return
    yield Finding(
        rule="F11",
        why=(
            f"a single request gets {pace:g} tokens/s, {100 * pace / most:.0f} % of what the memory of "
            f"{card.name} allows ({bandwidth:g} GB/s over {read / 1e9:.0f} GB of weights for each token)"
        ),
        expects="no flag makes it much faster: weights in fewer bits, a mixture of experts with fewer active "
        "parameters, or speculative decoding do; several requests at once share the same reads",
        risks="another model or quantisation answers differently",
        evidence={"tokens_per_s": pace, "most": round(most, 1)},
    )


def _check_long_prefill(config: ServeConfig) -> Iterable[Finding]:
    """Answers that pause until a long prompt is counted, which is when it ends."""
    counts, budget = _read_counts(config), effective_batched_tokens(config)
    if budget is None or config.setting.get(THRESHOLD) or len(counts) < 3:  # noqa: PLR2004 - a pause, before and after
        return
    best, paused = max(each.answers for each in counts), 0
    for each in counts:
        slow = each.running > 1 and each.answers < HELD * best
        if slow and each.prompts * INTERVAL_S < budget:
            paused += 1
            continue
        if paused > 1 and each.prompts * INTERVAL_S >= STEPS * budget:
            yield _held_back(config, paused, best, budget)
            return
        paused = 0


def _held_back(config: ServeConfig, paused: int, best: float, budget: int) -> Finding:
    given = config.setting.get("max_num_batched_tokens") is not None
    half = budget // 2
    return Finding(
        rule="P4",
        klass="auto" if given else "note",
        severity="warning",
        why=(
            f"in {paused} counts of the log in a row running requests got less than a tenth of {best:g} "
            f"tokens/s, until a prompt of many steps of {budget:,} tokens ended: it took each step whole"
        ),
        to={THRESHOLD: half} if given else {},
        expects=f"with --{THRESHOLD.replace('_', '-')} {half} a long prompt takes half of a step, so "
        "answers and short prompts go on",
        risks="long prompts take 3 to 11 % longer",
        evidence={"counts": paused, "max_num_batched_tokens": budget},
    )


LINTS = (
    DeploymentCheck(
        rules=("F11",),
        find=_check_bandwidth,
        reports="a single request whose pace is that of the GPU's memory",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; https://www.lyb.re/writing/2026-03-10-dgx-spark-vllm",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("P4",),
        find=_check_long_prefill,
        reports="answers that pause while a long prompt is computed",
        source=f"vllm/config/scheduler.py: {THRESHOLD}; vllm-project/vllm#54919",
        evidence_for=(
            "the longest pause falls from 440 to 25 s (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#110)"
        ),
        evidence_against=(
            "long prompts take up to 11 % longer (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#157)"
        ),
        needs=LOG,
    ),
)
