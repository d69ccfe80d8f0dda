"""Flags on the slow side: G1, G3, A1, B1, X1, P3, C1 and M5, if the flags show them."""

from collections.abc import Iterable, Mapping

from flettner.lint.rules.prefix_blocks import counts_no_hits, find_block
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import (
    CONSERVING_MEMORY,
    DOCS,
    FASTER_GRAPHS,
    GRAPHS_AGAINST,
    GRAPHS_FOR,
    OPTIMIZATION,
    OPTIMIZATION_LEVELS,
    RECIPES,
    V1_ENGINE,
)
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    has_kv_transfer,
    is_at_least,
    is_older_than,
    is_omni,
    is_pooling,
    is_sparse,
    json_entry,
    layout,
    patch_number,
    remove_json_entry,
    runs_on_cpus,
    speculation_method,
    text_of,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob, Value

ASYNC_SINCE = (0, 14)
_MODE, HOPPER = "compilation_config.cudagraph_mode", (9, 0)
_FULL_SINCE, _FULL_BY_DEFAULT = (0, 10, 1), (0, 11, 0)  # vllm-project/vllm#25444
SHARED_PREFIXES = frozenset({"chat", "rag", "api"})  # profiles whose prompts begin alike
_ALIGNED, _UNKNOWN = (0, 16), (0, 29)  # has mamba_cache_mode; later releases may have it on by default
ROOM_GIB = 1.5  # for KV cache; CUDA graphs take 0.4 to 0.6 of it
SERVERS, RANK = "api_server_count", "max_lora_rank"
SERVERS_SINCE = (0, 10)
SMALL = 1e9  # parameters: with 7 billion the GPU is the limit (vllm-project/vllm#26641)
HIGH_RANK = 128  # few adapters have more than 64
ASYNC_METHODS = ("eagle", "mtp", "draft_model", "ngram_gpu", "dspark", "dflash")


def _check_eager(config: ServeConfig) -> Iterable[Finding]:
    if config.setting.get("enforce_eager") is not True or is_pooling(config) or is_omni(config):
        return
    if runs_on_cpus(config):
        return  # there are no CUDA graphs, and what compilation brings there is not known
    took = estimate_fit(config)
    tight = took is not None and took.fits is not False and took.kv_gib < ROOM_GIB  # else D2 makes room
    yield Finding(
        rule="G1",
        klass="note" if tight else "auto",
        severity="info" if tight else "warning",
        why="--enforce-eager is set: no CUDA graphs and no compilation, so each decode step waits for Python",
        to={} if tight else {"enforce_eager": False},
        expects=("the GPU's memory is nearly full, so graphs may not fit; else " if tight else "")
        + f"faster decoding, most with few requests at once ({FASTER_GRAPHS})",
        risks="the start compiles and captures graphs: seconds to minutes longer, and more GPU memory",
    )


def _check_graphs(config: ServeConfig) -> Iterable[Finding]:
    if config.setting.get("enforce_eager") is True or runs_on_cpus(config):
        return
    level = config.setting.get("optimization_level")
    if str(level) in {"0", "1"}:
        what = "no compilation and no CUDA graphs" if str(level) == "0" else "PIECEWISE CUDA graphs only"
        yield _slower_switch_finding(
            f"-O{level} gives {what}; the default is -O2", {"optimization_level": None}, "warning"
        )
    mode = str(json_entry(config, "compilation_config", "cudagraph_mode") or "").upper()
    if _begins_in_pieces(config) and mode in {"", "PIECEWISE"}:
        yield from _check_early_mode(config)
    elif mode in {"NONE", "PIECEWISE"} and not has_kv_transfer(config):
        to = remove_json_entry(config, "compilation_config", "cudagraph_mode")
        yield _slower_switch_finding(
            f"cudagraph_mode is {mode}; the default is FULL_AND_PIECEWISE",
            to,
            "warning" if mode == "NONE" else "info",
        )
    elif mode in {"FULL", "FULL_DECODE_ONLY"} and not has_kv_transfer(config):
        to = remove_json_entry(config, "compilation_config", "cudagraph_mode")
        why = f"cudagraph_mode is {mode}: mixed batches run without the default's PIECEWISE graphs"
        yield _slower_switch_finding(why, to, "info")


def _begins_in_pieces(config: ServeConfig) -> bool:
    """Whether the release has full graphs for decoding, yet not by default."""
    release = patch_number(config)
    return release is not None and _FULL_SINCE <= release < _FULL_BY_DEFAULT


def _check_early_mode(config: ServeConfig) -> Iterable[Finding]:
    """Measured with FlashAttention on Hopper; not where other keys of the flag or another backend decide."""
    keys = [knob for knob in config.setting if knob.partition(".")[0] == "compilation_config"]
    others = [knob for knob in keys if knob != _MODE]
    hybrid = config.model is not None and config.model.hybrid
    measured = config.card is not None and config.card.capability == HOPPER
    chosen = "VLLM_ATTENTION_BACKEND" in config.env
    if others or hybrid or chosen or not measured or is_pooling(config) or has_kv_transfer(config):
        return
    if speculation_method(config) or config.env.get("VLLM_USE_V1") == "0" or layout(config).pp > 1:
        return
    start = config.start
    if start is not None and (not start.serves or start.full_cache):
        return  # speed is no help to a server that fails, and graphs take memory from a cache that is full
    yield _slower_switch_finding(
        f"CUDA graphs are PIECEWISE by default with vLLM {config.version}: attention is launched layer by "
        "layer in each decode step (reported with full graphs: 5.98 instead of 4.07 requests/s, ten at once "
        "on an H100; not promised)",
        {_MODE: "FULL_AND_PIECEWISE"},
        "warning" if is_sparse(config) and start is not None else "info",
    )


def _slower_switch_finding(why: str, to: Mapping[Knob, Value], severity: FindingSeverity) -> Finding:
    return Finding(
        rule="G3",
        klass="auto" if set(to) == {"optimization_level"} else "gated",  # other keys may depend on it
        severity=severity,
        why=why,
        to=to,
        expects="lower ITL: full decode steps run as one graph",
        risks="a longer start and some GPU memory for the graphs",
    )


def _check_async(config: ServeConfig) -> Iterable[Finding]:
    method, given = speculation_method(config), config.setting.get("async_scheduling")
    incompatible = bool(method) and not method.startswith(ASYNC_METHODS) and not method.endswith("_mtp")
    if given is False and not incompatible and layout(config).pp == 1 and not is_pooling(config):
        if is_older_than(config, ASYNC_SINCE):
            return
        yield Finding(
            rule="A1",
            klass="auto",
            severity="warning",
            why="--no-async-scheduling is set: the GPU waits between steps while the next step is scheduled",
            to={"async_scheduling": None},
            expects="TTFT, ITL and throughput improve where the CPU is the limit; on by default since 0.14",
            risks="if it was turned off for a fault of this version, keep it off",
        )


def _check_prefix_caching(config: ServeConfig) -> Iterable[Finding]:
    off = config.setting.get("enable_prefix_caching") is False
    hybrid = config.model is not None and config.model.hybrid
    if not off or hybrid or is_pooling(config):
        return
    yield Finding(
        rule="X1",
        klass="auto",
        severity="warning" if config.profile in SHARED_PREFIXES else "info",
        why="--no-enable-prefix-caching is set: a prefix that many prompts share is computed each time",
        to={"enable_prefix_caching": None},
        expects="lower TTFT where prompts share a prefix (system prompt, documents, earlier turns)",
        risks="benchmarks with repeated prompts look better than they are; hashing costs little",
    )


def _check_hybrid_caching(config: ServeConfig) -> Iterable[Finding]:
    """A note: for hybrid models vLLM leaves it out, without a line in the log: it is experimental there."""
    shared = config.profile in SHARED_PREFIXES or bool(text_of(config, "tool_call_parser"))  # agents
    on = any("enable_prefix_caching=True" in line for line in config.log)
    known = is_at_least(config, _ALIGNED) and is_older_than(config, _UNKNOWN)
    hybrid = config.model is not None and config.model.hybrid
    given = "enable_prefix_caching" in config.setting
    if given or not hybrid or not (shared or counts_no_hits(config)) or on or not known or is_pooling(config):
        return
    drafts = (
        "; with drafts compare the answers (vllm-project/vllm#53912)" if speculation_method(config) else ""
    )
    yield Finding(
        rule="X1",
        severity="info",
        why=(
            "prefix caching is off for a hybrid model unless asked for: each turn of a chat or an agent "
            "computes the whole conversation again"
        ),
        expects=(
            "--enable-prefix-caching (with --mamba-cache-mode align) keeps it: a second turn of 20,000 "
            f"tokens took 1.2 s instead of 17{drafts}{_describe_block(config)}"
        ),
        risks="experimental there: compare the answers; states at the ends of blocks take KV cache",
        evidence={"version": config.version},
    )


def _describe_block(config: ServeConfig) -> str:
    """The length from which on prompts are shared, if the log tells it."""
    block = find_block(config)
    return (
        f"; only prompts that share more than {block:,} tokens, a block of this cache, have a hit"
        if block
        else ""
    )


def _check_chunked_prefill(config: ServeConfig) -> Iterable[Finding]:
    if config.setting.get("enable_chunked_prefill") is not False or is_pooling(config):
        return
    hybrid = config.model is not None and config.model.hybrid
    yield Finding(
        rule="P3",
        klass="gated",
        severity="info" if hybrid else "warning",
        why="--no-enable-chunked-prefill is set: one long prompt delays every running answer",
        to={"enable_chunked_prefill": None},
        expects="prompts are split over several steps: a shorter tail of ITL",
        risks="none known: vLLM itself warns of crashes and wrong answers with it off",
    )


def _check_api_servers(config: ServeConfig) -> Iterable[Finding]:
    """A small encoder computes faster than one process tokenizes its texts and writes its vectors."""
    size = config.model.parameters if config.model else None
    if size is None or size > SMALL or not is_pooling(config) or is_older_than(config, SERVERS_SINCE):
        return
    if SERVERS in config.setting or layout(config).gpus > 1 or runs_on_cpus(config):
        return
    yield Finding(
        rule="C1",
        why=f"one process tokenizes all texts for a model of {size / 1e9:.1g} billion parameters, and writes "
        "all vectors: under load it is busy before the GPU is",
        expects="if many requests come at once and the host has free cores, compare --api-server-count 4",
        risks="each process takes a core and 1 to 2 GiB of the host's memory; CLIP on texts became slower",
        evidence={"parameters": size},
    )


def _check_adapter_rank(config: ServeConfig) -> Iterable[Finding]:
    rank = positive_int(config.setting, RANK)
    if config.setting.get("enable_lora") is not True or rank is None or rank < HIGH_RANK:
        return
    slots = positive_int(config.setting, "max_loras") or 1
    yield Finding(
        rule="M5",
        why=f"--max-lora-rank {rank}: the buffers of the {slots} adapter{'s' if slots > 1 else ''} that run "
        "at once, and their kernels, have this rank, whatever rank the adapters have",
        expects="the largest r in the adapters' adapter_config.json: less memory, faster steps",
        risks="an adapter of a higher rank is refused",
        evidence={RANK: rank},
    )


def _check_adapter_slots(config: ServeConfig) -> Iterable[Finding]:
    given = text_of(config, "lora_modules")
    named = given.count('"name"') or len(given.split())
    slots = positive_int(config.setting, "max_loras") or 1
    if config.setting.get("enable_lora") is not True or named <= slots:
        return
    default = "" if "max_loras" in config.setting else " (the default)"
    yield Finding(
        rule="B1",
        why=f"--max-loras {slots}{default} with {named} adapters: a request for another one waits until "
        "those of the adapters in the slots have ended, whatever memory is free",
        expects=f"with --max-loras {named} they run together",
        risks="memory for each slot, by --max-lora-rank; where few are asked for at once, fewer are right",
        evidence={"adapters": named, "max_loras": slots},
    )


LINTS = (
    DeploymentCheck(
        rules=("B1",),
        find=_check_adapter_slots,
        reports="more adapters of LoRA than may run at once",
        source="vllm/v1/core/sched/scheduler.py: max_loras",
        evidence_for="no public measurement: what is gained is the time that requests wait",
        needs=Needs(applies=has_any("lora_modules")),
    ),
    DeploymentCheck(
        rules=("C1",),
        find=_check_api_servers,
        reports="a small model that embeds or scores, behind one API server",
        source="vllm/entrypoints/launchers/cli_args.py: api_server_count; vllm-project/vllm#26641",
        evidence_for=(
            "77 instead of 26 requests/s of bge-base with 8 API servers (vllm-project/vllm#26641); much more "
            "throughput of arctic-embed-m (vllm-project/vllm#22941)"
        ),
        evidence_against="CLIP on texts was half as fast (vllm-project/vllm#26641)",
        needs=Needs(facts=("model",), applies=is_pooling),
    ),
    DeploymentCheck(
        rules=("M5",),
        find=_check_adapter_rank,
        reports="a high max_lora_rank",
        source=f"{DOCS}/features/lora/ (Configuring max_lora_rank); vllm-project/vllm#22782",
        evidence_for=(
            "an adapter of rank 256 took 4 times the time of none (vllm-project/vllm#14435); no "
            "measurement of one adapter under two ranks is public"
        ),
        needs=Needs(applies=has_any(RANK)),
    ),
    DeploymentCheck(
        rules=("G1",),
        find=_check_eager,
        reports="`--enforce-eager`",
        source=f"vllm/config/vllm.py: 'Enforce eager set'; {CONSERVING_MEMORY} (CUDA graphs)",
        evidence_for=GRAPHS_FOR,
        evidence_against=GRAPHS_AGAINST,
    ),
    DeploymentCheck(
        rules=("G3",),
        find=_check_graphs,
        reports="an optimization level or a mode of CUDA graphs other than the default",
        source=f"vllm/config/vllm.py: OptimizationLevel; {OPTIMIZATION_LEVELS}; vllm-project/vllm#25444",
        evidence_for=(
            "5.98 instead of 4.07 requests/s with full graphs (Qwen3-Coder-30B-A3B-FP8, H100, ten requests, "
            "vllm-project/vllm#25444)"
        ),
    ),
    DeploymentCheck(
        rules=("A1",),
        find=_check_async,
        reports="`--no-async-scheduling`, where async scheduling is the default",
        source="vllm-project/vllm#27614 (the default since 0.14)",
        evidence_for=(
            "31 % more throughput of Qwen3-30B-A3B, in a pipeline of 4 (vllm-project/vllm#32618); none for "
            "prompts (vllm-project/vllm#27914)"
        ),
        evidence_against=(
            "SemiAnalysisAI/InferenceX#1276 turns it off for MiniMax-M2.5 on MI355X, among other changes"
        ),
        needs=Needs(facts=("version",), applies=has_any("async_scheduling")),
    ),
    DeploymentCheck(
        rules=("X1",),
        find=_check_prefix_caching,
        reports="`--no-enable-prefix-caching`",
        source=f"{DOCS}/features/automatic_prefix_caching/; {V1_ENGINE}",
        evidence_for=(
            f"several times the throughput with many hits, less than 1 % lost with none ({V1_ENGINE})"
        ),
        evidence_against=(
            f"{RECIPES} DeepSeek/DeepSeek-OCR.md turns it off (no common prefix), others do on some AMD GPUs"
        ),
        needs=Needs(facts=("model",), applies=has_any("enable_prefix_caching")),
    ),
    DeploymentCheck(
        rules=("X1",),
        find=_check_hybrid_caching,
        reports="prefix caching of hybrid models, which is off unless asked for, where prompts repeat",
        source="syv-ai/qwen38-27b-rtx3090#6; vllm/config/model.py: is_prefix_caching_supported",
        evidence_for=(
            "a second turn of 20,000 tokens took 1.2 s instead of 16.7 (syv-ai/qwen38-27b-rtx3090#6)"
        ),
        evidence_against="with MTP a model forgot text and leaked tool calls (vllm-project/vllm#53912)",
    ),
    DeploymentCheck(
        rules=("P3",),
        find=_check_chunked_prefill,
        reports="`--no-enable-chunked-prefill`",
        source=f"vllm/config/scheduler.py: enable_chunked_prefill; {OPTIMIZATION}",
        evidence_for="no public measurement of today's engine",
        evidence_against=f"{RECIPES} Qwen/Qwen3-Next.md turns it off for a hybrid with MTP",
    ),
)
