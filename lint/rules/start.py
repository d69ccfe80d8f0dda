"""Times and KV cache capacity in the log of a start (rules F6, F7 and L1)."""

from collections.abc import Iterable, Mapping

from flettner.lint.recogniser import LOG
from flettner.lint.rules.full_cache import FEW, name_remedies
from flettner.vllm_facts.log_counts import read_counts
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, Layout, is_at_least
from flettner.vllm_facts.sizing.kv_cache import weights_gib
from flettner.vllm_facts.sizing.limits import round_length
from flettner.vllm_facts.start_facts import find_last
from flettner.vllm_facts.values import Value

_SEQS, _LEN, _STRATEGY = "max_num_seqs", "max_model_len", "safetensors_load_strategy"
_STRATEGY_SINCE, _PREFETCHES = (0, 11), (0, 24)  # 0.10.2 has the flag; the releases that were read prefetch
_LOADERS = frozenset({None, "auto", "safetensors"})
_SLOW_S, _DISK_GIB_PER_S, _LONG_PART_S = 300.0, 0.5, 10.0
_SHORTENED = {
    "weights_s": "the weights took most of it: a local disk, or a warm cache of files, reads faster",
    "compilation_s": "compilation took most of it",
    "graph_capture_s": "the capture of graphs took most of it: with max_num_seqs at what really runs at once "
    "fewer sizes are captured",
}


def _check_times(config: ServeConfig) -> Iterable[Finding]:
    """F6: the times of a start are spread over several lines."""
    times = {name: _find_seconds(pattern, config.log) for name, pattern in _TIMES.items()}
    read: dict[str, Value] = {name: took_s for name, took_s in times.items() if took_s}
    if not read:
        return ()
    times_text = ", ".join(
        f"{name.removesuffix('_s').replace('_', ' ')} {took:g} s" for name, took in read.items()
    )
    return (
        Finding(
            rule="F6",
            why=f"this start took {times_text}: set deadlines for a start well above that",
            expects=_name_largest(times)
            + "keep VLLM_CACHE_ROOT (~/.cache/vllm) on a volume that outlives the container: the next "
            "start of the same flags loads what this one compiled",
            evidence=read,
        ),
    )


def _name_largest(times: Mapping[str, float | None]) -> str:
    """What shortens the longest part, if it is most of what the log tells."""
    parts = {name: took for name in _SHORTENED if (took := times[name])}
    longest = max(parts, key=lambda name: parts[name], default="")
    if not longest or parts[longest] * 2 < sum(parts.values()) or parts[longest] < _LONG_PART_S:
        return ""
    return f"{_SHORTENED[longest]}; "


def _check_loading(config: ServeConfig) -> Iterable[Finding]:
    """F6: a network disk answers the small reads of lazy loading slowly."""
    took = _find_seconds(_TIMES["weights_s"], config.log)
    size, loader = weights_gib(config, Layout()), config.setting.get("load_format")
    if took is None or took < _SLOW_S or config.setting.get(_STRATEGY) or loader not in _LOADERS:
        return
    if size is not None and size / took > _DISK_GIB_PER_S:
        return
    value = "prefetch" if is_at_least(config, _PREFETCHES) else "eager"
    known = is_at_least(config, _STRATEGY_SINCE)
    rate = f", {size / took:.2f} GiB/s" if size is not None else ""
    yield Finding(
        rule="F6",
        klass="gated" if known else "note",
        severity="warning",
        why=f"this start took {took:g} s to read the weights{rate}: a network disk is slow at the small "
        "reads of lazy loading",
        to={_STRATEGY: value} if known else {},
        expects=f"with --safetensors-load-strategy {value} files are read in one piece, several times faster "
        "over Lustre and NFS; a local copy is faster still",
        risks="a file at a time has to fit the host's memory; no gain from a local disk",
        source="vllm-project/vllm#24469; vllm/config/load.py: safetensors_load_strategy",
        evidence={"weights_s": took},
    )


def _check_capacity(config: ServeConfig) -> Iterable[Finding]:
    """F7: one line of present releases, two lines of older ones."""
    size, most = find_last(_KV_SIZE, config.log), find_last(_AT_ONCE, config.log)
    if size is None or most is None:
        return ()
    tokens, longest = (int(number.replace(",", "")) for number in (size[1], most[1]))
    at_once, seqs = float(most[2].replace(",", "")), config.setting.get(_SEQS)
    cap = f"; {_SEQS} is {seqs}" if isinstance(seqs, int) else ""
    if at_once < 1 and config.start is not None and config.start.serves:
        return (_bound_length(config, min(tokens, int(at_once * longest)), longest),)
    if 1 <= at_once < FEW and not read_counts(config.log):
        return (_name_few(config, tokens, longest, at_once),)
    return (
        Finding(
            rule="F7",
            severity="warning" if at_once < 1 else "info",
            why=f"the KV cache holds {tokens:,} tokens: {at_once:g} requests of {longest:,} at once{cap}",
            expects="nothing to do: this is the real capacity, the measure for a sequence cap",
            evidence={"kv_cache_tokens": tokens, _LEN: longest, "full_length_requests": at_once},
        ),
    )


def _name_few(config: ServeConfig, tokens: int, longest: int, at_once: float) -> Finding:
    """Before any count shows what runs: whether requests are that long is not known."""
    return Finding(
        rule="L1",
        why=(
            f"the KV cache holds {tokens:,} tokens: {at_once:g} requests of {longest:,} at once. If requests "
            "are that long, the next ones wait, or are preempted and computed again"
        ),
        expects=f"{name_remedies(config)} hold more; of shorter requests more fit anyway",
        risks="a smaller format of the cache or of the weights may change answers",
        evidence={"kv_cache_tokens": tokens, _LEN: longest, "full_length_requests": at_once},
    )


def _bound_length(config: ServeConfig, tokens: int, longest: int) -> Finding:
    """Some releases accept a length that the cache does not hold, where layers have a sliding window.

    Such layers may need less of it than the line says, so that only a queue that never moves is a proof.
    """
    present = config.setting.get(_LEN)
    shorter = isinstance(present, int) and present <= tokens
    waits = find_last(_STUCK, config.log) is not None
    to: dict[str, Value] = {_LEN: round_length(tokens)} if waits and not shorter else {}
    does = "never starts, and those behind it wait, too" if waits else "may never start"
    return Finding(
        rule="F7",
        klass="gated" if to else "note",
        severity="info" if shorter else "warning",
        why=(
            f"the KV cache holds {tokens:,} tokens, yet requests of {longest:,} are accepted: one that is "
            f"longer than the cache {does}"
        ),
        to=to,
        expects=f"with a {_LEN} that the cache holds, longer requests are refused with an error; more KV "
        "cache holds longer ones",
        risks="none: such a request gets no answer now" if to else "longer requests are refused",
        source="vllm-project/vllm#16580; vllm-project/vllm#39734",
        evidence={
            "kv_cache_tokens": tokens,
            _LEN: longest,
            "full_length_requests": round(tokens / longest, 2),
        },
    )


def _find_seconds(pattern: str, log: tuple[str, ...]) -> float | None:
    match = find_last(pattern, log)
    return float(match[1]) if match else None


_TIMES = {
    "weights_s": r"Loading weights took ([\d.]+\d|\d+) seconds",
    "compilation_s": r"torch\.compile (?:took|takes) ([\d.]+\d|\d+) s in total",
    "graph_capture_s": r"Graph capturing finished in (\d+) secs",
    "engine_start_s": r"init engine \([^)]*\) took ([\d.]+\d|\d+) s",
}
_STUCK = r"generation throughput: 0\.0 tokens/s, Running: 0 reqs?, Waiting: [1-9]"
_KV_SIZE = r"KV cache size: ([\d,]*\d) tokens"
_AT_ONCE = r"Maximum concurrency for ([\d,]*\d) tokens per request: ([\d,]*\d\.?\d*)x"

LINTS = (
    DeploymentCheck(
        rules=("F6",),
        find=_check_times,
        reports="how long compilation, graph capture and the start of the engine took",
        source=(
            f"vllm/compilation/monitor.py: 'torch.compile took'; {DOCS}/design/torch_compile/ (the cache)"
        ),
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F6",),
        find=_check_loading,
        reports="weights that a network disk gives slowly",
        source="vllm-project/vllm#24469",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F7", "L1"),
        find=_check_capacity,
        reports="how many tokens and requests of full length the KV cache holds",
        source="vllm/v1/core/kv_cache_utils.py: 'Maximum concurrency for'",
        needs=LOG,
    ),
)
