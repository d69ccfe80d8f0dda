"""KV cache and weights in the host's memory: rule O1."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flettner.lint.missing_facts import ESTIMATE
from flettner.vllm_facts.log_counts import LEAST, read_counts
from flettner.vllm_facts.references import KV_OFFLOADING
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, Needs, ServeConfig
from flettner.vllm_facts.sizing.capacity import seqs_that_fit
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_seqs,
    has_any,
    json_entry,
    layout,
    number_of,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, longest_request
from flettner.vllm_facts.sizing.parallel_layouts import count_hosts
from flettner.vllm_facts.values import Knob, Value

WEIGHTS = "cpu_offload_gb"
LMCACHE_SIZE = "LMCACHE_MAX_LOCAL_CPU_SIZE"
AIBRIX_SIZE = "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB"
_DIGITS = 7
_GB = 1e9 / 2**30
_LMCACHE_IN_LOG = re.compile(r"'max_local_cpu_size': '?(?P<size>\d{1,6}(?:\.\d*)?)")
_TAKES_MEMORY = "Creating LMCacheEngine instance"
_ENDED = re.compile(r"leaked shared_memory|died unexpectedly|\bKilled\b|exit ?code")
_FEW_HITS = 1.0  # percent of the tokens that a connector was asked for
_ROOMY = 80.0  # percent of the KV cache in use, up to which the GPU keeps what it has computed
_LEAST_LEFT = 0.25  # of the KV cache
PCIE_GIB_PER_S = 24.0  # PCIe 4 with 16 lanes, in practice


def _check_cache(config: ServeConfig) -> Iterable[Finding]:
    size = number_of(config, "kv_offloading_size")
    if not size or _brings_nothing(config):
        return  # the second is of the log, which knows better
    room, seqs = seqs_that_fit(config, tokens=longest_request(config)), effective_seqs(config)
    wanted = min(float(seqs), config.concurrency or float(seqs)) if seqs else config.concurrency
    enough = room is not None and wanted is not None and room >= wanted
    to: Mapping[Knob, Value] = (
        {"kv_offloading_size": None} if enough else {}
    )  # the backend alone does nothing
    held = f"; the GPU alone holds {room} requests of full length" if room is not None else ""
    yield Finding(
        rule="O1",
        klass="auto",
        severity="warning" if enough else "info",
        why=f"{size:g} GiB of KV cache are offloaded to the host{held}",
        to=to,
        expects=(
            "with short contexts measure without it: 41 % less throughput is reported with it, and several "
            "times more if prefixes repeat; not promised"
        ),
        risks="if contexts or users do not fit the GPU, or prefixes repeat, offloading is worth its cost",
        evidence={"kv_offloading_size": size},
    )


def _check_unused_cache(config: ServeConfig) -> Iterable[Finding]:
    """What the log counts: the host's memory brings no prompt back, while the GPU's own cache has room."""
    size = number_of(config, "kv_offloading_size")
    if not size or not _brings_nothing(config):
        return
    last = read_counts(config.log)[-1]
    held = f", while the GPU's own cache held {last.hits:g} %" if last.hits else ""
    yield Finding(
        rule="O1",
        klass="gated",
        severity="warning",
        why=(
            f"by the log {last.host_hits:g} % of the prompts' tokens come back from the {size:g} GiB of KV "
            f"cache on the host{held}: blocks are copied there for nothing"
        ),
        to={"kv_offloading_size": None},
        expects="more throughput without it: 41 % less is reported with it, where the GPU holds the prefixes",
        risks="prefixes that the GPU drops under more load are computed again",
        evidence={"kv_offloading_size": size, "host_hits_percent": last.host_hits},
    )


def _brings_nothing(config: ServeConfig) -> bool:
    """Whether nearly no token comes back from the host, in counts of busy steps with room on the GPU."""
    busy = [count for count in read_counts(config.log) if count.prompts]
    return len(busy) >= LEAST and all(
        count.host_hits is not None and count.host_hits < _FEW_HITS and (count.usage or 0.0) < _ROOMY
        for count in busy
    )


def _check_weights(config: ServeConfig) -> Iterable[Finding]:
    size = number_of(config, WEIGHTS)
    if not size or _leaves_room(config, size):
        return
    setting = {knob: value for knob, value in config.setting.items() if knob != WEIGHTS}
    took = estimate_fit(replace(config, setting=setting))
    shrinks = bool(config.setting.get("quantization"))  # while it loads, it needs the room of 16 bits
    spare = took is not None and took.fits is True and not shrinks
    yield _describe_weights(size, spare=spare, severity="info" if shrinks else "warning")


def _check_measured_weights(config: ServeConfig) -> Iterable[Finding]:
    """What the log measured needs no numbers of the model."""
    size = number_of(config, WEIGHTS)
    if size and _leaves_room(config, size):
        yield _describe_weights(size, spare=True, severity="warning")


def _describe_weights(size: float, *, spare: bool, severity: FindingSeverity) -> Finding:
    to: Mapping[Knob, Value] = {WEIGHTS: None} if spare else {}
    return Finding(
        rule="O1",
        klass="gated",
        severity=severity,
        why=(
            f"{WEIGHTS} {size:g}: each step reads {size:g} GiB of weights of each GPU from the host, some "
            f"{size / PCIE_GIB_PER_S * 1000:.0f} ms over PCIe 4" + ("; they fit the GPU" if spare else "")
        ),
        to=to,
        expects=(
            "tokens come as fast as the GPU reads its own memory"
            if spare
            else "a quantised checkpoint, more GPUs or a shorter max_model_len keep the weights on the GPU; "
            "reported: 4 to 6 tokens/s with 16 and 70 GiB on the host"
        ),
        risks="less KV cache" if spare else "none",
        evidence={WEIGHTS: size},
    )


def _leaves_room(config: ServeConfig, size: float) -> bool:
    """Whether the KV cache of the log is so much larger than the weights in the host's memory."""
    start = config.start
    if start is None or start.kv_gib is None or not start.serves:
        return False
    return start.kv_gib - size >= max(start.request_gib or 0.0, start.kv_gib * _LEAST_LEFT)


def _check_lmcache(config: ServeConfig) -> Iterable[Finding]:
    """LMCache inside the workers: each takes the whole size when the server starts."""
    connector = str(json_entry(config, "kv_transfer_config", "kv_connector") or "")
    size, ranks = _lmcache_size(config), layout(config).gpus
    if not connector.startswith("LMCacheConnector") or not size or ranks == 1:
        return
    failed = _ends_in_lmcache(config)
    yield Finding(
        rule="F9" if failed else "O1",
        severity="error" if failed else "info",
        why=("it did not start: the log ends where LMCache takes the host's memory; " if failed else "")
        + f"LMCache pins {size:g} GB for each of {ranks} ranks, {size * ranks:g} GB in all",
        expects=f"host memory for all of it, also in the container's limit; or a smaller {LMCACHE_SIZE} "
        "(max_local_cpu_size in LMCache's file), which is the share of one rank",
        risks="fewer prefixes are kept",
        evidence={LMCACHE_SIZE: size},
    )


def _lmcache_size(config: ServeConfig) -> float | None:
    """In GB, for one rank; None if neither the variable nor the log gives it."""
    text = config.env.get(LMCACHE_SIZE, "")
    told = next(filter(None, map(_LMCACHE_IN_LOG.search, reversed(config.log))), None)
    number = re.fullmatch(r"\d{1,6}(?:\.\d*)?", text.strip())
    return float(number[0]) if number else float(told["size"]) if told else None


def _ends_in_lmcache(config: ServeConfig) -> bool:
    last = max((at for at, line in enumerate(config.log) if _TAKES_MEMORY in line), default=None)
    after = () if last is None else config.log[last + 1 :]
    loaded = config.start is not None and config.start.loaded
    return any(map(_ENDED.search, after)) and not loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What a server is known to keep in the host's memory."""

    what: str
    all_gib: float
    processes: int  # that share it


def host_memory(config: ServeConfig) -> HostMemory | None:
    """The caches and weights in the memory of one host, in all; None if there are none."""
    hosts = count_hosts(config) or 1
    ranks = max(1, layout(config).gpus // hosts)
    connector = str(json_entry(config, "kv_transfer_config", "kv_connector") or "")
    layer = config.env.get(AIBRIX_SIZE, "").strip()
    asked = connector.startswith("AIBrix") and layer.isdecimal() and len(layer) < _DIGITS
    lmcache = _lmcache_size(config) if connector.startswith("LMCacheConnector") else None
    parts = {
        f"LMCache for {ranks} ranks": (lmcache or 0.0) * ranks * _GB,
        f"AIBrix' cache of {layer} GB for each of {ranks} ranks": int(layer) * ranks * _GB if asked else 0.0,
        "kv_offloading_size": (number_of(config, "kv_offloading_size") or 0.0) / hosts,
        f"{WEIGHTS} for {ranks} GPUs": (number_of(config, WEIGHTS) or 0.0) * ranks,
    }
    given = {what: gib for what, gib in parts.items() if gib}
    if not given:
        return None
    return HostMemory(what=" and ".join(given), all_gib=sum(given.values()), processes=ranks)


LINTS = (
    DeploymentCheck(
        rules=("O1",),
        find=_check_cache,
        reports="KV cache in the host's memory, which a GPU cache that is large enough does not need",
        source="vllm/config/cache.py: kv_offloading_size",
        evidence_for=(
            "41 % less throughput with it (Qwen3-8B, 2 L40S, 0.19.1, vllm-project/vllm#44294); none more "
            "on an RTX 4070 Super (https://dielabs.github.io/papers/when-offloading-doesnt-offload.html)"
        ),
        evidence_against=f"up to 9 times the throughput where prefixes repeat ({KV_OFFLOADING})",
        needs=Needs(facts=ESTIMATE, applies=has_any("kv_offloading_size")),
    ),
    DeploymentCheck(
        rules=("O1",),
        find=_check_unused_cache,
        reports="KV cache in the host's memory, from which the log counts nearly no hit",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; vllm-project/vllm#44294",
        evidence_for=(
            "267 instead of 158 tokens/s without it, 50 requests that share 10,000 tokens "
            "(Qwen3-8B, 2 L40S, 0.19.1, vllm-project/vllm#44294)"
        ),
        needs=Needs(facts=("log",), applies=has_any("kv_offloading_size")),
    ),
    DeploymentCheck(
        rules=("O1",),
        find=_check_weights,
        reports="weights in the host's memory, which each step reads over PCIe",
        source="vllm/config/offload.py: cpu_offload_gb",
        evidence_for=(
            "4 to 6 tokens/s with 16 and 70 GiB on the host (vllm-project/vllm#22692, vllm-project/vllm#6496)"
        ),
        needs=Needs(for_change=ESTIMATE, applies=has_any(WEIGHTS)),
    ),
    DeploymentCheck(
        rules=("O1",),
        find=_check_measured_weights,
        reports="weights in the host's memory, although the log shows room for them on the GPU",
        source="vllm/config/offload.py: cpu_offload_gb; vllm-project/vllm#57771",
        evidence_for="2,434 instead of 120 tokens/s on 8 H20 (vllm-project/vllm#57771)",
        needs=Needs(facts=("log",), applies=has_any(WEIGHTS)),
    ),
    DeploymentCheck(
        rules=("O1", "F9"),
        find=_check_lmcache,
        reports="LMCache's size in the host's memory, which each rank takes as a whole",
        source="LMCache/LMCache#949; LMCache/LMCache#2901",
    ),
)
