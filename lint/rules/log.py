"""Log lines of a vLLM server that show a problem of its flags (rules F1 to F5 and F8).

The patterns match the releases of the catalogue; lines that no pattern matches are ignored.
"""

import re
from collections.abc import Iterable
from itertools import islice
from math import ceil, floor

from flettner.lint.queue_causes import ROOM, advise_higher_cap, explain_queue, has_slow_many
from flettner.lint.recogniser import LOG, recogniser
from flettner.lint.rules.full_cache import advise_full_cache
from flettner.lint.rules.graph_memory import takes_cache_for_graphs
from flettner.lint.rules.known_errors import PINNED
from flettner.lint.step_cache import SmallerStep, find_smaller_step
from flettner.vllm_facts.log_counts import FULL, LEAST, Count, read_counts
from flettner.vllm_facts.references import FASTER_GRAPHS, GRAPHS_AGAINST, GRAPHS_FOR, SCALING
from flettner.vllm_facts.serve_config import Finding, ServeConfig, SharedCard
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    is_older_than,
    layout,
    memory_share,
    patch_number,
    runs_on_cpus,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.limits import find_limits, name_others, round_length, share_limit
from flettner.vllm_facts.values import Knob, Value

_UTILIZATION, _SEQS, _LEN = "gpu_memory_utilization", "max_num_seqs", "max_model_len"
_DENSE, _MOE = 0.92, 0.85  # the exchange's buffers of a MoE are outside vLLM's accounts
_UTMOST = 0.95  # vllm-project/vllm#1298: safe up to there
_LITTLE = 0.03  # of the GPU: more than that is rarely free beside a server
_V1, _OWN_MEMORY = (0, 8, 0), (0, 9, 2)  # from V1 as the default until its servers know their own memory
_HOST_CACHE = "VLLM_CPU_KVCACHE_SPACE"
_CHUNKS, _CHUNKED_ABOVE = "enable_chunked_prefill", 32768
LEAST_CACHE_GIB = 0.5
_WINDOW_SPEC = "vllm/v1/kv_cache_interface.py: SlidingWindowSpec"
HYBRID_OFF = "Turning off hybrid kv cache manager because `--kv-transfer-config`"


def _missing_moe_config(match: re.Match[str], config: ServeConfig) -> Finding:
    folder = config.env.get("VLLM_TUNED_CONFIG_FOLDER", "")
    there = f" although VLLM_TUNED_CONFIG_FOLDER is {folder}" if folder else ""
    return Finding(
        rule="F1",
        why=f"according to the log the MoE kernels run on their default configuration{there}",
        expects=(
            "benchmarks/kernels/benchmark_moe.py --tune on this GPU, with VLLM_TUNED_CONFIG_FOLDER at its "
            "output, may help: reports are 3 and 10 % more throughput, no difference, and a loss"
        ),
        risks="the tuning needs exclusive use of the GPU for hours: measure before and after",
        evidence={"line": match[0]},
    )


def _eager_mode(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if runs_on_cpus(config):
        return None  # there are no CUDA graphs, and what compilation brings there is not known
    level = config.setting.get("optimization_level")
    by_level = level == 0 and not config.setting.get("enforce_eager")
    to: dict[Knob, Value] = {"optimization_level": None} if by_level else {"enforce_eager": False}
    return Finding(
        rule="F2",
        klass="auto",
        severity="warning",
        why="according to the log CUDA graphs and compilation are off: each decoding step waits for the CPU",
        to=to,
        expects=f"faster decoding ({FASTER_GRAPHS})",
        risks="a longer first start (compilation, graph capture), and memory for the graphs",
        evidence={"line": match[0]},
    )


def _no_custom_all_reduce(match: re.Match[str], config: ServeConfig) -> Finding | None:
    tensor = config.setting.get("tensor_parallel_size")
    if "more than two PCIe-only" not in match[0] and tensor == 1:
        return None
    return Finding(
        rule="F3",
        severity="warning",
        why=f"the log says: {match[0].strip()[:160]}; every layer's all-reduce uses the slow path",
        expects="where the model fits one GPU: data parallel replicas instead of tensor parallel over PCIe",
        evidence={"line": match[0].strip()[:160]}
        | ({} if tensor is None else {"tensor_parallel_size": tensor}),
    )


def _no_kv_blocks(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if takes_cache_for_graphs(config):
        return None  # graph_memory.py knows more
    present, wanted, missing = memory_share(config), _share_with_cache(config), ""
    if config.shared_card is not None and _counts_others(config):
        return _counted_others(match, config.shared_card)
    if (roomy := estimate_fit(config)) is not None and roomy.fits:
        return _held_by_others(match, present, roomy.kv_gib)
    if wanted is not None and (fit := estimate_fit(config, share=wanted)) and fit.fits is False:
        wanted, missing = None, f"; at {wanted:g}, too, it would not start: {fit.why}"
    to: dict[Knob, Value] = {_UTILIZATION: wanted} if wanted is not None else {}
    limit = find_limits(config).get(_UTILIZATION)
    bound = f" ({limit.why})" if limit is not None and limit.value < _DENSE else ""
    more = (
        "the weights and the activations leave memory for KV cache"
        if to
        else f"no higher {_UTILIZATION} is safe here{bound}: shorten {_LEN}, or use a quantised model or "
        "more GPUs"
    )
    return Finding(
        rule="F4",
        klass="auto" if to else "note",
        severity="error",
        why=f"it did not start: at {_UTILIZATION} {present:g} no GPU memory is left for the KV cache"
        + missing,
        to=to,
        expects=more,
        risks="less memory for other processes on this GPU, which may run out of memory",
        evidence={"line": match[0]},
    )


def _held_by_others(match: re.Match[str], present: float, room_gib: float) -> Finding:
    return Finding(
        rule="F4",
        severity="error",
        why=(
            f"it did not start: at {_UTILIZATION} {present:g} no GPU memory is left for the KV cache, though "
            f"the model leaves about {room_gib:.1f} GiB: another process held it (some releases count "
            "all), or the largest image or video, which the start computes, took it"
        ),
        expects=f"nvidia-smi lists other processes: stop them, or raise {_UTILIZATION} by what they or the "
        "inputs take; --limit-mm-per-prompt excludes images and videos that no request has",
        evidence={"line": match[0], _UTILIZATION: present},
    )


def _counts_others(config: ServeConfig) -> bool:
    """Whether the release counts what other processes hold on the GPU (vllm-project/vllm#18974)."""
    release = patch_number(config)
    return release is not None and _V1 <= release < _OWN_MEMORY and config.env.get("VLLM_USE_V1") != "0"


def _counted_others(match: re.Match[str], card: SharedCard) -> Finding:
    """A note: the log does not say which of the servers it is of, and the first one needs no change."""
    sum_of_all = round(card.own + sum(other.share for other in card.others), 2)
    alone = f"--gpu-memory-utilization {sum_of_all:g} for the one that starts last, the sum of them all; or "
    return Finding(
        rule="F4",
        severity="error",
        why=(
            "it did not start: up to 0.9.1 vLLM counts what other servers hold on the GPU as its own, and "
            f"{name_others(card)} may run there"
        ),
        expects=f"{alone if sum_of_all <= _UTMOST else ''}vLLM 0.9.2 or newer, where each has its own share",
        evidence={"line": match[0], _UTILIZATION: card.own},
    )


def _share_with_cache(config: ServeConfig) -> float | None:
    """The gpu_memory_utilization with which a KV cache is left; None if no safe one is known to suffice."""
    present, ceiling = memory_share(config), _MOE if config.model and config.model.experts else _DENSE
    start, limit = config.start, share_limit(config)
    if start is not None and start.kv_gib is not None and start.total_gib:
        least = present + (max(0.0, -start.kv_gib) + (start.request_gib or LEAST_CACHE_GIB)) / start.total_gib
        if least > _UTMOST:
            return None
        ceiling = max(ceiling, ceil(least * 100) / 100)
    ceiling = ceiling if limit is None else min(ceiling, limit)
    return ceiling if present < ceiling else None


def _context_too_long(match: re.Match[str], config: ServeConfig) -> Finding | None:
    wanted, fits = int(match["wanted"].replace(",", "")), int(match["fits"].replace(",", ""))
    present = config.setting.get(_LEN)
    if any(HYBRID_OFF in line for line in config.log) or config.setting.get(PINNED):
        return (
            None  # F9 knows more: a connector made the cache of a hybrid model larger, or its size is given
        )
    if fits < 1 or (isinstance(present, int) and present <= fits):
        return None
    if (share := _share_for_request(config)) is not None:
        return Finding(
            rule="F4",
            klass="auto",
            severity="error",
            why=f"it did not start: a request of {wanted} tokens does not fit the KV cache of {fits} tokens, "
            f"and {share - memory_share(config):.2f} of the GPU's memory are missing",
            to={_UTILIZATION: share},
            expects=f"it starts with the full length where that much of the GPU is free; else with {_LEN} "
            f"{round_length(fits)}",
            risks="less memory for other processes on this GPU, which may run out of memory",
            evidence={_LEN: wanted, "estimated_max_model_len": fits},
        )
    if (smaller := find_smaller_step(config, wanted, fits)) is not None:
        return _shrink_step(smaller, wanted, fits)
    if (size := _host_cache_gib(config)) is not None:
        return _enlarge_host_cache(size, wanted, fits)
    return Finding(
        rule="F4",
        klass="gated",
        severity="error",
        why=f"it did not start: a request of {wanted} tokens does not fit the KV cache of {fits} tokens",
        to={_LEN: round_length(fits)},
        expects="it starts" + _describe_chunks(config, wanted) + _describe_workspace(config),
        risks="longer requests are refused; more KV cache or a smaller model would keep them",
        evidence={_LEN: wanted, "estimated_max_model_len": fits},
    )


def _shrink_step(step: SmallerStep, wanted: int, fits: int) -> Finding:
    return Finding(
        rule="F4",
        klass="gated",
        severity="error",
        why=(
            f"it did not start: a request of {wanted} tokens does not fit the KV cache of {fits} tokens; by "
            f"the log's figures about {step.held_gib:.1f} GiB of it do not grow with its length: layers with "
            f"a window hold all tokens of a step (max_num_batched_tokens {step.present})"
        ),
        to={"max_num_batched_tokens": step.tokens},
        expects=f"it starts with the full length; or with {_LEN} {round_length(fits)} as it is",
        risks="long prompts take more steps",
        source=f"vllm-project/vllm#51041; vllm-project/recipes#617; {_WINDOW_SPEC}",
        evidence={_LEN: wanted, "estimated_max_model_len": fits, "max_num_batched_tokens": step.present},
    )


def _share_for_request(config: ServeConfig) -> float | None:
    """The share with room for a request of full length, if a little more memory is enough and is safe.

    vLLM counts the memory of CUDA graphs inside the share since 0.21; before, a higher one is not safe.
    """
    start, card, limit = config.start, config.card, share_limit(config)
    total = start.total_gib if start and start.total_gib else card.memory_gib if card else None
    if start is None or start.request_gib is None or start.kv_gib is None or not total:
        return None
    counted = any("graph memory profiling is enabled" in line for line in config.log)
    least = memory_share(config) + (start.request_gib - start.kv_gib) / total
    share = ceil(least * 100) / 100
    highest = _UTMOST if limit is None else min(limit, _UTMOST)
    small = share - memory_share(config) <= _LITTLE
    alone = config.shared_card is None
    return share if counted and alone and small and share <= highest else None


def _host_cache_gib(config: ServeConfig) -> int | None:
    """The KV cache of one request for a server on CPUs, whose default has 4 GiB; None on GPUs."""
    needed = config.start.request_gib if config.start else None
    return None if needed is None or not runs_on_cpus(config) else ceil(needed)


def _enlarge_host_cache(size: int, wanted: int, fits: int) -> Finding:
    return Finding(
        rule="F4",
        klass="gated",
        severity="error",
        why=f"it did not start: a request of {wanted} tokens does not fit the KV cache of {fits} tokens, "
        "which lies in the host's memory",
        env={_HOST_CACHE: str(size)},
        expects="it starts with the full length; several requests at once want more of that memory; "
        f"or with {_LEN} {round_length(fits)} as it is",
        risks="the host needs that much memory beside the weights",
        source="vllm-project/vllm#29233; https://docs.vllm.ai/en/latest/getting_started/installation/cpu/",
        evidence={_LEN: wanted, "estimated_max_model_len": fits},
    )


def _describe_workspace(config: ServeConfig) -> str:
    """That a forced FlashInfer takes memory which vLLM's own choice may leave."""
    forced = config.setting.get("attention_backend") or config.env.get("VLLM_ATTENTION_BACKEND")
    if str(forced).upper() != "FLASHINFER":
        return ""
    return (
        "; FLASHINFER's workspace is taken from the KV cache: without it vLLM may choose a backend that "
        "leaves room for the full length (vllm-project/vllm#55509)"
    )


def _describe_chunks(config: ServeConfig, wanted: int) -> str:
    """How releases with the V0 engine keep more of the length: up to 32k they measure a prompt whole."""
    whole = is_older_than(config, (0, 8)) and wanted <= _CHUNKED_ABOVE
    if not whole or config.setting.get(_CHUNKS) or runs_on_cpus(config):
        return ""
    return (
        "; --enable-chunked-prefill, which this release has by default above 32k only, needs less memory for "
        "a prompt, so more of the length fits (vllm-project/vllm#10517)"
    )


def _memory_in_use(match: re.Match[str], config: ServeConfig) -> Finding | None:
    free, total = float(match["free"]), float(match["total"])
    limit = share_limit(config)
    fits = floor(free / total * 100 - 1) / 100 if total else 0.0
    fits = fits if limit is None else min(fits, limit)
    if fits >= memory_share(config):
        return None
    took = estimate_fit(config, share=fits)
    small = took.why if took is not None and took.fits is False else ""
    crowded = fits < 0.5 <= memory_share(config)  # noqa: PLR2004 - another process uses the GPU
    wise = fits > 0 and not crowded and not small
    return Finding(
        rule="F4",
        klass="auto" if wise else "note",
        severity="error",
        why=(
            f"it did not start: {free:g} of {total:g} GiB were free, {memory_share(config):g} is requested"
            + (f"; with {fits:g} it would not start, either: {small}" if small else "")
        ),
        to={_UTILIZATION: fits} if wise else {},
        expects=(
            "it starts with the free memory; better: free the GPU first (nvidia-smi lists its processes)"
            if not small and not crowded
            else "it starts when the GPU is free (nvidia-smi lists its processes; failed starts may leave "
            "some)"
        )
        + _name_other_gpus(config),
        risks="less KV cache",
        evidence={"free_gib": free, "total_gib": total},
    )


def _name_other_gpus(config: ServeConfig) -> str:
    """That the host has GPUs to spare, of which vLLM takes the first."""
    now = layout(config)
    if config.gpus is None or config.gpus <= now.tp * now.pp * now.dp or "CUDA_VISIBLE_DEVICES" in config.env:
        return ""
    return (
        f", or choose another of the {config.gpus} GPUs: vLLM takes the first that it sees "
        "(CUDA_VISIBLE_DEVICES; device_ids in compose, --gpus device=1 with Docker)"
    )


def _mamba_blocks(match: re.Match[str], config: ServeConfig) -> Finding | None:
    seqs, blocks = int(match["seqs"]), int(match["blocks"])
    present = config.setting.get(_SEQS)
    if blocks < 1 or (isinstance(present, int) and present <= blocks):
        return None
    return Finding(
        rule="F5",
        klass="auto",
        severity="error",
        why=f"it did not start: {_SEQS} {seqs} is more than the {blocks} blocks of the Mamba cache",
        to={_SEQS: 1 << (blocks.bit_length() - 1)},
        expects="it starts; a higher gpu_memory_utilization makes more blocks",
        risks="fewer requests run at once",
        evidence={_SEQS: seqs, "mamba_blocks": blocks},
    )


def _stays(config: ServeConfig, running: int) -> bool:
    """Whether, while others wait, the counts of the log show this number of requests again and again."""
    held = [count.running for count in read_counts(config.log) if count.waiting and count.works]
    return len(held) > LEAST and running > 1 and set(held) == {running}


def _exceeds_cache(config: ServeConfig) -> bool:
    """Whether a request may be longer than the KV cache, which F7 reports as what the queue waits for."""
    short = any(map(_LESS_THAN_ONE.search, config.log))
    given, held = config.setting.get(_LEN), config.start.kv_tokens if config.start else None
    return short and not (isinstance(given, int) and held is not None and given <= held)


def _check_waiting(config: ServeConfig) -> Iterable[Finding]:
    findings = (_find_waiting(count, config) for count in reversed(read_counts(config.log)))
    return (finding for finding in islice(filter(None, findings), 1))


def _find_waiting(count: Count, config: ServeConfig) -> Finding | None:
    running, waiting, usage = count.running, count.waiting, count.usage
    still, stuck = not count.works and running > 0, not count.works and not running
    if not waiting or usage is None or (stuck and _exceeds_cache(config)):
        return None
    given = config.setting.get(_SEQS)
    seqs = running if given is None and _stays(config, running) else given
    reached = isinstance(seqs, int) and 0.9 * seqs <= running <= seqs
    capped = usage < ROOM and reached and not still
    full = usage >= FULL and not still
    cause, counts = "", f"{running} requests ran and {waiting} waited with the KV cache {usage:g} % full"
    if stuck:
        counts += ": the first in the queue never starts, or the engine hangs"
        advice = (
            "a request that fits no step never starts: its images or videos need a max_num_batched_tokens "
            "above their tokens; else the earlier log lines show what hangs"
        )
    elif still:
        advice = "no token was generated meanwhile: check the earlier log lines, not the flags"
    elif full:
        advice = advise_full_cache(config, running=running)
    elif capped:
        advice = advise_higher_cap(count, f"{_SEQS} {seqs}{' (the default)' if given is None else ''}")
    else:
        cause = explain_queue(config)
        advice = cause or (
            "`flettner advise` shows what they wait for, from the running server or from this log"
        )
    return Finding(
        rule="F8",
        severity="warning" if (capped and not has_slow_many(count)) or full or stuck or cause else "info",
        why=f"the log's latest count: {counts}",
        expects=advice,
        evidence={"running": running, "waiting": waiting, "kv_cache_usage_percent": usage},
    )


_LESS_THAN_ONE = re.compile(r"Maximum concurrency for [\d,]*\d tokens per request: 0\.\d+x")
_TOO_LONG = (  # the second text is that of vLLM up to 0.8
    r"max seq len \((?P<wanted>[\d,]*\d)\)(?:.*estimated maximum model length is "
    r"|.*maximum number of tokens that can be stored in KV cache \()(?P<fits>[\d,]*\d)"
)
_NOT_FREE = (
    r"Free memory on device\D{0,40}\d{0,4} ?\((?P<free>\d+(?:\.\d*)?)/(?P<total>\d+(?:\.\d*)?) GiB\) "
    r"on startup is less"
)
_EAGER = r"Cudagraph is disabled under eager mode|Enforce eager set, disabling torch\.compile"
_KV_CACHE = "vllm/v1/core/kv_cache_utils.py"

LINTS = (
    recogniser(
        "F1",
        r"Using default MoE config\. Performance might be sub-optimal!",
        _missing_moe_config,
        reports="MoE kernels without a tuned configuration for this GPU",
        source="vllm/model_executor/layers/fused_moe/fused_moe.py: get_moe_configs",
        evidence_for=(
            "3 % more throughput (Nemotron-Super, 8 H200, vllm-project/vllm#44675), 10 % (Qwen3.5, H200, "
            "vllm-project/vllm#37340)"
        ),
        evidence_against="no difference (vllm-project/vllm#44688), a loss (vllm-project/vllm#17619)",
    ),
    recogniser(
        "F2",
        _EAGER,
        _eager_mode,
        reports="CUDA graphs and compilation are off",
        source="vllm/config/vllm.py: 'Cudagraph is disabled under eager mode'",
        evidence_for=GRAPHS_FOR,
        evidence_against=GRAPHS_AGAINST,
    ),
    recogniser(
        "F3",
        r"Custom allreduce is disabled\b.*",
        _no_custom_all_reduce,
        reports="tensor parallelism without vLLM's own all-reduce, as over PCIe",
        source=f"vllm/distributed/device_communicators/custom_all_reduce.py; {SCALING}",
        evidence_for="no public measurement of the two layouts side by side",
    ),
    recogniser(
        "F4",
        r"No available memory for the cache blocks",
        _no_kv_blocks,
        reports="no memory is left for the KV cache; vLLM says to raise gpu_memory_utilization",
        source=f"{_KV_CACHE}: 'No available memory for the cache blocks'",
    ),
    recogniser(
        "F4",
        _TOO_LONG,
        _context_too_long,
        reports="a KV cache that holds no request of the full length",
        source=f"{_KV_CACHE}: 'To serve at least one request'",
    ),
    recogniser(
        "F4",
        _NOT_FREE,
        _memory_in_use,
        reports="less memory is free than gpu_memory_utilization asks for",
        source="vllm/v1/worker/utils.py: request_memory",
    ),
    recogniser(
        "F5",
        r"max_num_seqs \((?P<seqs>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
        _mamba_blocks,
        reports="more sequences than the Mamba cache has blocks",
        source=("vllm/config/compilation.py: 'exceeds available Mamba cache'; vllm-project/vllm#34094"),
    ),
    DeploymentCheck(
        rules=("F8",),
        find=_check_waiting,
        reports="requests that wait, by the latest count in the log",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger",
        needs=LOG,
    ),
)
