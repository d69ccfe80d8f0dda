"""The pace of a server, by the counts in its log: rules F11, SD1, B3 and P4."""

from collections.abc import Iterable
from dataclasses import dataclass

from flettner.lint.recogniser import LOG
from flettner.lint.rules.multimodal import WITH_VIDEO
from flettner.vllm_facts.drafts import find_flags, find_own_drafts
from flettner.vllm_facts.log_counts import INTERVAL_S, read_counts
from flettner.vllm_facts.serve_config import Finding, Model, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    Layout,
    effective_batched_tokens,
    is_at_least,
    is_older_than,
    is_pooling,
    is_sparse,
    layout,
    text_of,
)
from flettner.vllm_facts.sizing.gpus import find_bandwidth
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, longest_request, weights_gib
from flettner.vllm_facts.sizing.parallel_layouts import is_pcie_only

THRESHOLD = "long_prefill_token_threshold"
SLOW = 12.0  # tokens/s at most: below, a reader of the answer waits for it
SLOW_LARGE, LARGE_B = 50.0, 40e9  # of a dense model of so many bytes, which reach 0.6 of it
NEAR = 0.5  # of the bandwidth: kernels reach 0.7 to 0.95 of it
ALL = 1.15  # above: the embedding and the parts for images are no reads of a text's token
FAR = 0.3  # of the usual pace: no kernel that fits the GPU is so slow
COSTLY = 0.6  # of the usual pace without drafts
HOST_PACE, SMALL_PACE = 300.0, 200.0  # tokens/s: the host launches about so many steps; of small models
TINY_STEP, LARGE_STEP = 2048, 16384  # tokens: below, B3 asks for more anyway; above, nothing was measured
FEW_AT_ONCE, LEAST_SIZE = 16, 4e9  # requests, and parameters: a model of 0.8B became slower
MANY_PROMPTS = 10.0  # tokens of prompts for one of an answer: with more, prompts take most of the time
ONE_TO_A_HOST = frozenset({"GB10"})
STILL = 4  # counts in a row: a long prompt is counted when it ends, and most end earlier
WAITS_SINCE, REFUSES_SINCE = (0, 8), (0, 17)  # an item larger than the encoder's cache
HELD, STEPS = 0.1, 4  # of the best pace; steps that the prompt behind a pause takes at least
THIN_SPLIT, THIN = 4, 1.5e9  # GPUs, and active parameters of each
GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Pace:
    """Of a single request, in tokens/s: the best of the log, and what the memory allows without drafts.

    `named`: the size of the model is told by its name alone.
    """

    best: float
    most: float
    bandwidth: float  # GB/s
    read: float  # bytes of weights for each token
    named: bool = False

    @property
    def share(self) -> float:
        return self.best / self.most

    def describe(self, card: str) -> str:
        """`90 % of what the memory of GB10 allows (273 GB/s over 16 GB of weights for each token)`"""
        by_name = ", by the model's name and if it reads all of them" if self.named else ""
        return (
            f"{min(100, 100 * self.share):.0f} % of what the memory of {card} allows ({self.bandwidth:g} "
            f"GB/s over {self.read / 1e9:.0f} GB of weights for each token{by_name})"
        )


def find_pace(config: ServeConfig) -> Pace | None:
    alone = [each.answers for each in read_counts(config.log) if (each.running, each.waiting) == (1, 0)]
    return reckon_pace(config, max(alone)) if alone else None


def reckon_pace(config: ServeConfig, best: float) -> Pace | None:
    model, card, shape = config.model or config.estimate, config.card, layout(config)
    if model is None or card is None or (shape.dp > 1 and is_sparse(config)):
        return None
    size, bandwidth = _find_part(config, model), find_bandwidth(card)
    if not size or bandwidth is None or not model.parameters:
        return None
    read = size * GIB * min(1.0, (model.active_parameters or model.parameters) / model.parameters)
    return Pace(best, bandwidth * 1e9 / read, bandwidth, read, named=config.model is None)


def _find_part(config: ServeConfig, model: Model) -> float | None:
    """GiB of weights that each GPU of a tensor parallel group reads, of all stages of a pipeline in turn."""
    shape = layout(config)
    if config.model is not None:
        return weights_gib(config, Layout(tp=shape.tp))
    if config.start is not None and config.start.weights_gib:
        return config.start.weights_gib * shape.pp
    return (model.parameters or 0.0) * (model.weight_bytes or 0.0) / GIB / shape.tp


def explains_pace(config: ServeConfig) -> bool:
    """Whether another check of this module says why a single request is as slow as it is."""
    return any(True for check in (_check_bandwidth, _check_far_below) for _ in check(config))


def _check_slow_memory(config: ServeConfig) -> Iterable[Finding]:
    """A remark before any log: a model whose weights this memory reads only a few times a second."""
    if config.log or find_flags(config.setting) or is_pooling(config) or config.setting.get("cpu_offload_gb"):
        return
    pace, name = reckon_pace(config, 0.0), config.card.name if config.card else ""
    took = estimate_fit(config)
    if pace is None or pace.most >= _find_slow(config, pace) or (took is not None and took.fits is False):
        return
    yield Finding(
        rule="F11",
        why=(
            f"a single request gets at most {pace.most:.1f} tokens/s: for each one the memory of {name} "
            f"({pace.bandwidth:g} GB/s) reads {pace.read / 1e9:.0f} GB of weights"
        ),
        expects="a pace of 0.6 to 0.9 of that is what this model does here, and no flag makes it much "
        "faster: a mixture of experts with few active parameters, weights in fewer bits or speculative "
        "decoding do; several requests at once share the reads",
        risks="another model or quantisation answers differently",
        evidence={"most": round(pace.most, 1)},
    )


def _find_slow(config: ServeConfig, pace: Pace) -> float:
    """Below so many tokens/s at most, people ask why it is slow."""
    large = not is_sparse(config) and pace.read * layout(config).tp >= LARGE_B
    return SLOW_LARGE if large else SLOW


def _check_bandwidth(config: ServeConfig) -> Iterable[Finding]:
    """One request reads all active weights for each token: no flag makes the memory faster."""
    pace, name = find_pace(config), config.card.name if config.card else ""
    if pace is None or find_flags(config.setting) or not NEAR <= pace.share <= ALL:
        return
    yield Finding(
        rule="F11",
        why=f"a single request gets {pace.best:g} tokens/s, {pace.describe(name)}",
        expects="no flag makes it much faster: weights in fewer bits, a mixture of experts with fewer active "
        "parameters, or speculative decoding do; several requests at once share the same reads",
        risks="another model or quantisation answers differently",
        evidence={"tokens_per_s": pace.best, "most": round(pace.most, 1)},
    )


def _check_thin_split(config: ServeConfig) -> Iterable[Finding]:
    """A remark: active weights so few that each GPU of a split reads its part in no time."""
    model, card, shape = config.model or config.estimate, config.card, layout(config)
    if model is None or not model.active_parameters or (card is not None and card.link != "pcie"):
        return
    part = model.active_parameters / shape.tp
    if not model.experts or shape.tp < THIN_SPLIT or part > THIN or is_pooling(config):
        return
    if config.log and (config.start is None or config.start.most_at_once != 1):
        return  # the log of several requests, or of none
    yield Finding(
        rule="F11",
        why=(
            f"one request alone: each token takes {model.active_parameters / 1e9:.1f}B active parameters, "
            f"{part / 1e9:.1f}B for each of {shape.tp} GPUs, so the two exchanges in each layer and the "
            "launches of kernels bound its pace, not the reads"
        ),
        expects="compare fewer GPUs for an engine, with weights in FP8 or 4 bits where they do not fit, and "
        "speculative decoding; the other GPUs hold more engines. Many requests at once share the exchanges",
        risks="fewer GPUs hold less KV cache",
        evidence={"tensor_parallel_size": shape.tp, "active_parameters": model.active_parameters},
    )


def _check_far_below(config: ServeConfig) -> Iterable[Finding]:
    """A remark: so slow that it is neither the memory nor the host that launches the steps."""
    pace, name = find_pace(config), config.card.name if config.card else ""
    if pace is None or find_flags(config.setting) or config.setting.get("cpu_offload_gb"):
        return
    usual = min(NEAR * pace.most, HOST_PACE)
    if layout(config).gpus > 1 or not 0 < pace.best < FAR * usual or is_pooling(config):
        return
    yield Finding(
        rule="F11",
        why=(
            f"a single request gets {pace.best:g} tokens/s at best, and {usual:.0f} are usual where the "
            f"memory of {name} ({pace.bandwidth:g} GB/s) reads {pace.read / 1e9:.1f} GB for each token, if "
            "it ran all the time of a count"
        ),
        expects="more requests at once do not make one faster: look for kernels that this GPU lacks for the "
        "format of the weights (the start's log names those it falls back to), eager mode, another program "
        "on the GPU or a slow CPU; compare another format of the model, or llama.cpp where vLLM has no "
        "kernels",
        evidence={"tokens_per_s": pace.best, "usual": round(usual)},
    )


def _check_own_drafts(config: ServeConfig) -> Iterable[Finding]:
    """Few requests at once leave the GPU time to verify drafts that the checkpoint itself makes."""
    most, own = config.start.most_at_once if config.start else None, find_own_drafts(text_of(config, "model"))
    size = config.model.parameters if config.model else None
    if own is None or most is None or most > FEW_AT_ONCE or find_flags(config.setting) or is_pooling(config):
        return
    if not mostly_answers(config):
        return
    if (
        not is_at_least(config, own.since)
        or layout(config).pp > 1
        or (size is not None and size < LEAST_SIZE)
    ):
        return
    yield Finding(
        rule="F11",
        why=(
            f"at most {most} requests at once in the log: each step reads the weights for few tokens, and "
            "this checkpoint has a layer that drafts the next one (MTP)"
        ),
        expects=(
            'compare --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\': latencies 1.2 '
            "to 2.7 times shorter are reported for up to 16 requests a second on an H200, not promised"
        ),
        risks="with many requests at once drafts cost throughput; some KV cache goes to the layer",
        source=own.source,
        evidence={"most_at_once": most},
    )


def mostly_answers(config: ServeConfig) -> bool:
    """Whether the steps are rather for answers than for prompts, which no draft makes faster."""
    counts = read_counts(config.log)
    prompts, answers = sum(count.prompts for count in counts), sum(count.answers for count in counts)
    return answers > 0 and prompts <= MANY_PROMPTS * answers


def _check_costly_drafts(config: ServeConfig) -> Iterable[Finding]:
    """Drafts with which a single request is slower than the memory lets it be without them."""
    pace, given = find_pace(config), find_flags(config.setting)
    # experts reach a small part of the memory's pace
    if pace is None or pace.named or not given or is_sparse(config):
        return
    plain = min(NEAR * pace.most, HOST_PACE)
    if pace.best >= COSTLY * plain:
        return
    small = plain >= SMALL_PACE
    yield Finding(
        rule="SD1",
        klass="gated" if small else "note",
        severity="warning" if small else "info",
        why=(
            f"with drafts a single request gets {pace.best:g} tokens/s at best, yet without them {plain:.0f} "
            "are usual for this model and GPU: the steps of the drafts cost more than they save, if the "
            "requests follow each other without a pause"
        ),
        to=dict.fromkeys(given) if small else {},
        expects="compare without speculation: 342 instead of 128 tokens/s were measured for a model of 0.8B, "
        "although 97 % of the drafts were accepted",
        risks="none for the answers; with pauses between requests the counts are too low",
        evidence={"tokens_per_s": pace.best, "usual": round(plain)},
    )


def _check_prompt_steps(config: ServeConfig) -> Iterable[Finding]:
    """Prompts of many steps, computed alone, each step with an exchange over slow links."""
    counts, budget, shape = read_counts(config.log), effective_batched_tokens(config), layout(config)
    linked = is_pcie_only(config) or (config.card is not None and config.card.name in ONE_TO_A_HOST)
    if shape.tp == 1 or not linked or budget is None or not TINY_STEP <= budget < LARGE_STEP:
        return
    alone = [
        each for each in counts if each.prompts * INTERVAL_S >= budget and each.answers < 1 <= each.running
    ]
    if len(alone) < 3 or len(alone) * 2 < len(counts):  # noqa: PLR2004 - a prompt of half a minute
        return
    yield Finding(
        rule="B3",
        klass="gated",
        severity="info",
        why=(
            f"in {len(alone)} of {len(counts)} counts of the log nothing but prompts is computed, "
            f"{budget:,} tokens to a step, and each step exchanges its sums over slow links"
        ),
        to={"max_num_batched_tokens": 2 * budget},
        expects="long prompts are computed faster: 36 to 56 % more tokens/s with 16384 than with 8192 on "
        "4 GB10, and 3 % fewer in all with 48 requests at once",
        risks="more memory for activations, and answers pause longer while a prompt is computed",
        evidence={"counts": len(alone), "max_num_batched_tokens": budget},
    )


def _check_long_prefill(config: ServeConfig) -> Iterable[Finding]:
    """Answers that pause until a long prompt is counted, which is when it ends."""
    counts, budget = read_counts(config.log), effective_batched_tokens(config)
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


def _check_stall(config: ServeConfig) -> Iterable[Finding]:
    """Requests that run without a token, by the latest counts, while none waits."""
    counts = read_counts(config.log)
    last, never = counts[-STILL:], not any(each.works for each in counts)
    if never and layout(config).gpus > 1:
        return  # several GPUs that have never worked: hangs.py
    if len(last) < STILL or any(each.works or not each.running or each.waiting for each in last):
        return
    yield Finding(
        rule="F8",
        why=f"in the log's last {STILL} counts requests run ({last[-1].running}) and none gets a token",
        expects=f"{_explain_stall(config)}a long prompt is counted only when it ends, which is no fault; "
        "else the lines before them show what hangs",
        evidence={"running": last[-1].running, "counts": STILL},
    )


def _explain_stall(config: ServeConfig) -> str:
    """For a model that takes videos, in a release that waits for room in the encoder's cache."""
    budget, longest, model = effective_batched_tokens(config), longest_request(config), config.model
    takes_videos = model is not None and model.architecture in WITH_VIDEO
    if not (
        takes_videos and budget and longest and budget < longest and is_older_than(config, REFUSES_SINCE)
    ):
        return ""
    return (
        f"an image or a video of more tokens than a step holds ({budget:,}) may wait for ever in this "
        f"release: --max-num-batched-tokens {longest} holds all that --max-model-len allows, smaller ones "
        "(--mm-processor-kwargs) need less; "
    )


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
        rules=("F8",),
        find=_check_stall,
        reports="requests that run without a token, by the latest counts in the log",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; vllm-project/vllm#18329",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F11",),
        find=_check_own_drafts,
        reports="few requests at once without the drafts that the checkpoint can make (MTP)",
        source="https://docs.gpustack.ai/2.1/performance-lab/qwen3.5-35b-a3b/h200-latency",
        evidence_for=(
            "1.50 instead of 1.85 s for one request a second, 6.8 instead of 18.6 for 16 "
            "(Qwen3.5-35B-A3B-FP8, H200, https://docs.gpustack.ai/2.1/performance-lab/qwen3.5-35b-a3b/h200-latency)"
        ),
        evidence_against="slower with a model of 0.8B (vllm-project/vllm#39680)",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F11",),
        find=_check_bandwidth,
        reports="a single request whose pace is that of the GPU's memory",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; https://www.lyb.re/writing/2026-03-10-dgx-spark-vllm",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F11",),
        find=_check_thin_split,
        reports="a mixture of few active parameters over many GPUs without NVLink, for a single request",
        source="vllm-project/vllm#23885",
        evidence_for="32 tokens/s for one request (Qwen3-30B-A3B over 4 GPUs, vllm-project/vllm#23885)",
    ),
    DeploymentCheck(
        rules=("F11",),
        find=_check_far_below,
        reports="a single request that is far slower than the GPU's memory lets it be",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; kyuz0/amd-strix-halo-vllm-toolboxes#10",
        evidence_for="7.9 of 44 tokens/s (gpt-oss-120b, gfx1151, kyuz0/amd-strix-halo-vllm-toolboxes#10)",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F11",),
        find=_check_slow_memory,
        reports="a model that the GPU's memory lets answer slowly, whatever the flags are",
        source="eugr/spark-vllm-docker#193; https://www.lyb.re/writing/2026-03-10-dgx-spark-vllm",
        evidence_for=(
            "12.5 tokens/s of at most about 14 for one request (Gemma-4-31B-NVFP4 on a GB10, "
            "eugr/spark-vllm-docker#231)"
        ),
        needs=Needs(facts=("gpu", "model")),
    ),
    DeploymentCheck(
        rules=("SD1",),
        find=_check_costly_drafts,
        reports="drafts with which a single request is slower than without",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; vllm-project/vllm#39680",
        evidence_for="342 instead of 128 tokens/s without drafts (Qwen3.5-0.8B, vllm-project/vllm#39680)",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("B3",),
        find=_check_prompt_steps,
        reports="long prompts in small steps over GPUs with slow links",
        source="tonyd2wild/GLM-5.3-Flash-NVFP4-1M-KV-4x-DGX-Spark#2",
        evidence_for=(
            "TTFT of 114,000 tokens falls from 95 to 61 s with 16384 instead of 8192 "
            "(tonyd2wild/GLM-5.3-Flash-NVFP4-1M-KV-4x-DGX-Spark#2)"
        ),
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
