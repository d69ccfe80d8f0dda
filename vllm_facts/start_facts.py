"""What the log of a start measured: GPU memory, and the values that are known not to fit. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from flettner.vllm_facts.log_counts import most_at_once, waits_for_cache
from flettner.vllm_facts.values import Setting

LONGEST_LINE = 4000  # characters of a line that are read
_TRACEBACK = 60  # lines: that of a worker has about 30
_GIB = {"B": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """Sizes are in GiB for one GPU, the fullest of several. None: the log does not say it.

    `setting`: the flags of that start.
    """

    setting: Setting = field(default_factory=dict)
    total_gib: float | None = None
    free_gib: float | None = None  # before vLLM took any
    weights_gib: float | None = None
    kv_gib: float | None = None  # what was left for the KV cache; below 0: missing
    kv_tokens: int | None = None
    request_gib: float | None = None  # KV cache of one request of full length
    longest: int | None = None  # tokens of the longest request that fits
    loaded: bool = False  # the weights: the log shows the KV cache, or a later step
    read_weights: bool = False  # from the disk: kernels may still refuse them
    reached_engine: bool = False  # a process wrote lines that starts after the flags are read
    on_cpus: bool = False  # the server computes on CPUs
    serves: bool = False  # its API answered, or counts of requests are in the log
    full_cache: bool = False  # requests wait for it, by the latest count
    most_at_once: int | None = None  # requests that ran or waited, if several counts say it
    ran_out: bool = False  # of memory, once or more
    stage: str = ""  # of the last such error: "load", "profile", "graphs", "" (unknown)
    missing_gib: float | None = None  # of the allocation that failed
    others_gib: float | None = None  # held by other processes when it failed
    warm_up_seqs: int | None = None  # dummy requests with which the warm-up ran out
    state_blocks: int | None = None  # of the Mamba cache
    estimated_graphs_gib: float | None = None  # CUDA graphs, as the start reckons before it captures them
    captured_graphs_gib: float | None = None  # what they took
    uncounted_share: float | None = None  # of the GPU: CUDA graphs, where memory profiling leaves them out

    @property
    def passed_flags(self) -> bool:
        """Whether that start got past vLLM's checks of its flags, which come before the weights."""
        return self.loaded or self.read_weights or self.ran_out


OUT_OF_MEMORY = (
    r"(?:torch\.|CUDA)\w{0,40}\.?OutOfMemoryError.*"
    r"|(?:CUDA|HIP|XPU|NPU) (?:out of memory\. Tried|error: out of memory).*"
    r"|PT_DEVMEM Allocation failed.*|RESOURCE_EXHAUSTED: .{0,400}\bmemory\b.*"
    r"|Ran out of memory in memory space hbm.*"
    r"|UR_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES).*"
)
"""Of PyTorch on CUDA, ROCm, XPU and NPU, of Gaudi's bridge, of XLA (TPU), of oneAPI."""
DRIVER_OUT_OF_MEMORY = "NV_ERR_NO_MEMORY"

_SIZE = r"(-?\d[\d,]*\.?\d*) ?([KMGT]i?)?B"
_PATTERNS: Mapping[str, tuple[str, str]] = {  # how to choose among several lines, and the pattern
    "weights_gib": (
        "max",
        rf"(?:[Mm]odel loading took|Loading model weights took|model weights take|weights memory:) {_SIZE}",
    ),
    "kv_gib": ("min", rf"(?:[Aa]vailable KV cache memory:?|reserved for KV Cache is) \(?{_SIZE}"),
    "request_gib": ("max", rf"{_SIZE} KV\s+cache is needed"),
    "kv_tokens": ("min", r"KV cache size: (\d[\d,]*) tokens"),
    "at_once": ("min", r"Maximum concurrency for [\d,]* tokens per request: (\d[\d,]*\.?\d*)x"),
    "longest": ("min", r"estimated maximum model length is (\d[\d,]*)"),
    "stored": ("min", r"tokens that can be stored in KV cache \((\d[\d,]*)\)"),
    "warm_up_seqs": ("min", r"CUDA out of memory.*?(\d+) dummy requests"),
    "estimated_graphs_gib": ("max", rf"Estimated CUDA graph memory: {_SIZE}"),
    "captured_graphs_gib": ("max", rf"Graph capturing finished in \d+ secs?, took {_SIZE}"),
    "state_blocks": (
        "min",
        r"(?:exceeds available|sizes from max \d+ to \d+ to fit) Mamba cache blocks \((\d+)(?: blocks|\))",
    ),
}
_AFTER_LOADING = ("weights_gib", "kv_gib", "request_gib", "kv_tokens", "longest", "warm_up_seqs")
_UNCOUNTED = r"graph memory profiling is disabled.{0,400}?from (\d?\.?\d+) to (\d?\.?\d+)"
_FREE = r"Free memory on device\D*\d* ?\((\d+\.?\d*)/(\d+\.?\d*) GiB\) on startup"
_SHARE = r"'gpu_memory_utilization': (\d?\.\d+)|GPU memory utilization \((\d?\.\d+),"
_CAPACITY = rf"total capac\w+ of {_SIZE}|{_SIZE} total capacity"
_SERVES = (
    r"Application startup complete|Avg generation throughput|SpecDecoding metrics|HTTP/1\.[01]\" \d{3}\b"
)
_LOADED = (
    rf"KV cache specs|KV cache size:|Mamba cache blocks|{_SERVES}"
    r"|compilation during inference|RPC call to (?:execute_model|sample_tokens) timed out"
)
_PROFILED = (
    rf"KV [Cc]ache (?:memory|size|specs)|reserved for KV Cache|GPU blocks|graph memory|[Cc]apturing|{_SERVES}"
)
_READ = "Loading weights took"
_ENGINE = r"\((?:EngineCore|Worker|VllmWorker)\w* |\[core\.py:\d"
_ON_CPUS = r"detected platform cpu|\bcpu_(?:worker|model_runner)\.py"
_FAILED = rf"Tried to allocate {_SIZE}"
_LEFT = rf"{_SIZE} (?:is )?free"
_OWN = rf"this process has {_SIZE} memory in use"
_STAGES = {
    "load": (
        r"\bin (?:load_model|load_weights|initialize_model|create_weights)\b"
        r"|Failed to load model - not enough GPU memory"
    ),
    "profile": r"\bin (?:profile_run|determine_available_memory|determine_num_available_blocks)\b",
    "graphs": r"\bin (?:capture_model|_capture_cudagraphs|_warmup_and_capture|capture_graphs)\b",
}
"""As text, compiled on use: most commands are checked without a log."""


@lru_cache(maxsize=2)
def find_last(pattern: str | re.Pattern[str], log: Sequence[str]) -> re.Match[str] | None:
    """The match in the last line that has one."""
    matches = (re.search(pattern, line[:LONGEST_LINE]) for line in reversed(log))
    return next((match for match in matches if match), None)


def join_log(log: tuple[str, ...]) -> str:
    """The log as one text: most patterns match nowhere, so a single search per pattern is enough."""
    return "\n".join(line[:LONGEST_LINE] for line in log)


def read_start(log: tuple[str, ...], setting: Setting) -> StartFacts:
    """The facts of a log. `setting`: the flags of the command, which the log may correct."""
    facts = _read_facts(log)
    return replace(facts, setting={**setting, **facts.setting})


@lru_cache(maxsize=2)
def _read_facts(log: tuple[str, ...]) -> StartFacts:
    text = join_log(log)
    numbers = {name: _find_number(how, pattern, text) for name, (how, pattern) in _PATTERNS.items()}
    if numbers["request_gib"] is None and numbers["kv_gib"] and numbers["at_once"]:
        numbers["request_gib"] = numbers["kv_gib"] / numbers["at_once"]
    whole = {name: None if number is None else int(number) for name, number in numbers.items()}
    free = list(re.finditer(_FREE, text))
    share = next((match[1] or match[2] for match in reversed(list(re.finditer(_SHARE, text)))), None)
    failed, uncounted = _read_failure(log), re.search(_UNCOUNTED, text)
    return StartFacts(
        setting={} if share is None else {"gpu_memory_utilization": float(share)},
        total_gib=min((float(match[2]) for match in free), default=None) or failed.total_gib,
        free_gib=min((float(match[1]) for match in free), default=None),
        weights_gib=numbers["weights_gib"],
        read_weights=_READ in text,
        reached_engine=re.search(_ENGINE, text) is not None,
        on_cpus=re.search(_ON_CPUS, text) is not None,
        serves=re.search(_SERVES, text) is not None,
        full_cache=waits_for_cache(log),
        most_at_once=most_at_once(log),
        loaded=any(numbers[name] is not None for name in _AFTER_LOADING) or bool(re.search(_LOADED, text)),
        kv_gib=numbers["kv_gib"],
        kv_tokens=whole["kv_tokens"],
        request_gib=numbers["request_gib"],
        longest=min(filter(None, (whole["longest"], whole["stored"])), default=None),
        ran_out=failed.ran_out or whole["warm_up_seqs"] is not None,
        stage=failed.stage,
        missing_gib=failed.missing_gib,
        others_gib=failed.others_gib,
        warm_up_seqs=whole["warm_up_seqs"] or None,
        state_blocks=whole["state_blocks"] or None,
        estimated_graphs_gib=numbers["estimated_graphs_gib"],
        captured_graphs_gib=numbers["captured_graphs_gib"],
        uncounted_share=max(0.0, float(uncounted[2]) - float(uncounted[1])) if uncounted else None,
    )


def _read_failure(log: Sequence[str]) -> StartFacts:
    """The last line that says out of memory, with the numbers of PyTorch's allocator."""
    place = next((at for at in range(len(log) - 1, -1, -1) if _is_failure(log[at])), None)
    if place is None:
        return StartFacts()
    told = [line[:LONGEST_LINE] for line in log if "Tried to allocate" in line[:LONGEST_LINE]]
    line = told[-1] if told else log[place][:LONGEST_LINE]
    wanted, left = _gib(re.search(_FAILED, line)), _gib(re.search(_LEFT, line))
    total, own = _gib(re.search(_CAPACITY, line)), _gib(re.search(_OWN, line))
    known = total is not None and left is not None and own is not None
    trace = [each[:LONGEST_LINE] for each in log[max(0, place - _TRACEBACK) : place + 1]]
    return StartFacts(
        ran_out=True,
        stage=next(
            (name for name, code in _STAGES.items() if any(re.search(code, each) for each in trace)),
            "profile" if _is_before_cache(log[:place]) else "",
        ),
        total_gib=total,
        missing_gib=None if wanted is None or left is None else max(0.0, wanted - left),
        others_gib=max(0.0, total - left - own) if known and total and left is not None and own else None,
    )


def _is_before_cache(log: Sequence[str]) -> bool:
    """Whether the log ends between the weights and the KV cache, where the largest step is tried."""
    for line in reversed(log):
        if re.search(_PROFILED, line[:LONGEST_LINE]):
            return False
        if re.search(_PATTERNS["weights_gib"][1], line[:LONGEST_LINE]):
            return True
    return False


def _is_failure(line: str) -> bool:
    line = line[:LONGEST_LINE]
    return (
        re.search(r"(?i)mem|OUT_OF_RES", line) is not None
        and re.search(rf"{OUT_OF_MEMORY}|{DRIVER_OUT_OF_MEMORY}", line) is not None
    )


def _find_number(how: str, pattern: str, text: str) -> float | None:
    numbers = [number for match in re.finditer(pattern, text) if (number := _gib(match)) is not None]
    if not numbers:
        return None
    return min(numbers) if how == "min" else max(numbers)


def _gib(match: re.Match[str] | None) -> float | None:
    """The number of a match, in GiB if a unit follows it."""
    if match is None:
        return None
    number, *unit = [group for group in match.groups() if group is not None]
    value = float(number.replace(",", ""))
    if match.re.pattern.count("KMGT") == 0:
        return value
    return value * _GIB[unit[0][0] if unit else "B"]
