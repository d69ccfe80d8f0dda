"""The command line of the simulated vLLM server.

The flags come from the table of the vLLM release. An unknown flag ends as in vLLM: usage on stderr, exit 2.
A value or combination that vLLM refuses raises InvalidFlagError (exit code 1).
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from flettner.simulator.drafts import read_drafts
from flettner.simulator.faults import Faults, faults_for
from flettner.simulator.hardware import GIB, LINKS, PRESETS, Hardware, scaled, split
from flettner.simulator.memory import Demand
from flettner.simulator.pace import Hiccups
from flettner.simulator.release import SimulatedRelease
from flettner.simulator.scheduler import SchedulerLimits
from flettner.simulator.step_time import MAX_CAPTURE
from flettner.simulator.text import draws
from flettner.vllm_facts.releases import TABLE, ReleaseFlag

_Values = TypeVar("_Values")
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SUFFIXES |= {key.upper(): 1 << 10 * power for power, key in enumerate(_SUFFIXES) if key}
_KV_BYTES = {"auto": 1.0, "float16": 1.0, "bfloat16": 1.0, "fp8": 0.5, "fp8_e4m3": 0.5, "fp8_e5m2": 0.5}
_DEFAULTS = {
    "host": "0.0.0.0",  # noqa: S104 - as vLLM; the demo passes loopback
    "served_model_name": [],
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
}
"""Defaults that vLLM decides after parsing."""
_SIMULATED = frozenset(
    """
    api_key block_size data_parallel_size disable_log_stats enable_chunked_prefill
    enable_logging_iteration_details enable_prefix_caching enforce_eager gpu_memory_utilization host
    kv_cache_dtype kv_cache_memory_bytes long_prefill_token_threshold
    long_prefill_token_threshold_adaptive max_cudagraph_capture_size max_model_len max_num_active_seqs
    max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens
    max_num_seqs model num_gpu_blocks_override performance_mode port scheduler_reserve_full_isl
    scheduling_policy seed served_model_name shutdown_timeout speculative_config stream_interval
    tensor_parallel_size watermark
    """.split()  # noqa: SIM905 - one a line would be a page
)
_CHOICES = {"kv_cache_dtype": sorted(_KV_BYTES), "scheduling_policy": ["fcfs"]}
"""The choices of vLLM that are simulated."""
_AS_IT_IS = SimulatedRelease()
_REFUSED = frozenset(
    """
    config grpc grpc_port headless middleware root_path ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers
    ssl_keyfile uds
    """.split()  # noqa: SIM905 - as above
)
"""Flags that change how clients reach the server: ignoring them would mislead."""


class InvalidFlagError(Exception):
    """A value or combination that vLLM refuses; the message reads like its ValidationError."""

    def __init__(self, config: str, problem: str) -> None:
        super().__init__(
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n"
            f"  Value error, {problem} [type=value_error]"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Options of the simulation itself."""

    hardware: Hardware
    speed: float  # seconds of the engine per second of the clock
    start_s: float
    jitter: float  # sigma of the lognormal noise on step times
    acceptance: float  # of a drafted token, where those before it were accepted
    oom_above: float | None
    faults: Faults
    hiccups: Hiccups | None
    release: SimulatedRelease


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """A command line with vLLM's defaults filled in for this GPU."""

    model: str
    names: tuple[str, ...]  # the model is served as; the first is the metrics' label
    host: str
    port: int
    seed: int
    api_key: str | None
    shutdown_timeout: int
    stream_interval: int
    log_stats: bool
    log_iterations: bool
    enforce_eager: bool
    tensor_parallel_size: int
    data_parallel_size: int
    enable_prefix_caching: bool
    kv_cache_dtype: str
    speculative_config: str | None
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    limits: SchedulerLimits
    memory: Demand
    given: Mapping[str, object]  # what differs from the parser's defaults
    simulation: Simulation


def parse(argv: Sequence[str], release: SimulatedRelease = _AS_IT_IS) -> Flags:
    """Read a command line as the release does.

    Raises SystemExit(2) as argparse does, InvalidFlagError as vLLM's checks do.
    """
    parser = _parser(release)
    options = parser.parse_args([_dashes(word) for word in argv])
    given = {
        name: value
        for name, value in vars(options).items()
        if value != parser.get_default(name) and not name.startswith("sim_")
    }
    return _resolve(options, given, release)


def _dashes(word: str) -> str:
    """Replace underscores in the name of a flag: `--max_num_seqs=8` is `--max-num-seqs=8`."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _human(text: str) -> int:
    """Parse a size: `8k` is 8,000, `8K` is 8,192."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return int(float(match[1]) * _SUFFIXES[match[2]])


_TYPES = {"int": int, "float": float, "size": _human}


def _parser(release: SimulatedRelease) -> argparse.ArgumentParser:
    """Return the flags of the vLLM release. Flags outside _SIMULATED are accepted and have no effect."""
    parser = argparse.ArgumentParser(
        prog="flettner.simulator.server", description="A vLLM server without a model."
    )
    parser.add_argument("model_tag", nargs="?")
    for name, flag in TABLE.items():
        if name in _REFUSED:
            continue
        if name in release.without_flags:
            parser.set_defaults(**{name: _arguments(name, flag)["default"]})
            continue
        spelled = [f"--{name.replace('_', '-')}", *(f"--{alias.replace('_', '-')}" for alias in flag.aliases)]
        shown = None if name in _SIMULATED else argparse.SUPPRESS
        parser.add_argument(
            *spelled, *(f"-{short}" for short in flag.short), help=shown, **_arguments(name, flag)
        )
    own = parser.add_argument_group("simulation")
    own.add_argument("--sim-hardware", choices=sorted(PRESETS), default="t4-8b-awq")
    own.add_argument("--sim-link", choices=sorted(LINKS), default="nvlink", help="between the GPUs")
    own.add_argument("--sim-speed", type=float, default=1.0, help="engine seconds per second")
    own.add_argument("--sim-start-s", type=float, default=1.0, help="seconds until the port opens")
    own.add_argument("--sim-jitter", type=float, default=0.03, help="sigma of lognormal step noise")
    own.add_argument("--sim-acceptance", type=float, default=0.6, help="of each drafted token")
    own.add_argument("--sim-times", metavar="NAME=FACTOR,…", help="multiply coefficients of the step time")
    own.add_argument("--sim-hiccups", metavar="EVERY:LENGTH", help="seconds between pauses, and of each")
    own.add_argument("--sim-oom-above", type=float, help="gpu_memory_utilization beyond which start fails")
    own.add_argument("--sim-fault", action="append", default=[], metavar="KNOB=VALUE:KIND[=NUMBER]")
    return parser


def _arguments(name: str, flag: ReleaseFlag) -> dict[str, Any]:
    simulated = name in _SIMULATED
    default = _DEFAULTS.get(name, flag.default) if simulated else None
    if flag.type == "bool":
        return {"action": argparse.BooleanOptionalAction, "default": default}
    choices = _CHOICES.get(name, flag.choices) if simulated else ()
    several = "+" if flag.several and name != "api_key" else None
    return {
        "type": _TYPES.get(flag.type, str),
        "nargs": several,
        "choices": choices or None,
        "default": default,
    }


def _resolve(options: argparse.Namespace, given: Mapping[str, object], release: SimulatedRelease) -> Flags:
    """Return the flags with vLLM's defaults for this hardware. Raises InvalidFlagError."""
    try:
        alone = scaled(PRESETS[options.sim_hardware], _times(options.sim_times))
        gpu = split(alone, max(1, options.tensor_parallel_size), options.sim_link)
        hiccups = _hiccups(options.sim_hiccups)
        read_drafts(options.speculative_config, options.sim_acceptance, draws(0, "drafts"))
    except ValueError as error:
        raise InvalidFlagError("Simulation", str(error)) from error
    values = vars(options) | _resolve_sizes(options, gpu)
    setting = {name: values[name] for name in vars(options) if not name.startswith("sim_")}
    try:
        faults = faults_for([*release.faults, *options.sim_fault], setting)
    except ValueError as error:
        raise InvalidFlagError("Simulation", str(error)) from error
    simulated = {
        name.removeprefix("sim_"): value for name, value in values.items() if name.startswith("sim_")
    }
    return _take(
        Flags,
        values
        | {
            "model": options.model_tag or options.model,
            "names": tuple(options.served_model_name) or (options.model_tag or options.model,),
            "log_stats": not options.disable_log_stats,
            "log_iterations": options.enable_logging_iteration_details,
            "limits": _take(SchedulerLimits, values),
            "memory": _take(Demand, values),
            "given": given,
            "simulation": _take(
                Simulation,
                simulated | {"hardware": gpu, "faults": faults, "hiccups": hiccups, "release": release},
            ),
        },
    )


def _resolve_sizes(options: argparse.Namespace, gpu: Hardware) -> dict[str, Any]:
    """Return the sizes that vLLM derives from the hardware and from each other. Raises InvalidFlagError."""
    double = 2 if options.performance_mode == "throughput" else 1
    big = gpu.memory >= 70 * GIB and "a100" not in gpu.gpu.lower()
    batched = options.max_num_batched_tokens
    batched = (8192 if big else 2048) * double if batched is None else batched
    seqs = options.max_num_seqs
    seqs = min((1024 if big else 256) * double, batched) if seqs is None else seqs
    length = gpu.max_model_len if options.max_model_len is None else options.max_model_len
    if not options.enable_chunked_prefill and options.max_num_batched_tokens is None:
        batched = max(batched, length)
    block_size = 16 if options.block_size is None else options.block_size
    _check(options, batched, seqs, length, block_size)
    graph = options.max_cudagraph_capture_size
    graph = min(2 * seqs, MAX_CAPTURE, batched) if graph is None else min(graph, batched)
    return {
        "max_num_batched_tokens": batched,
        "max_num_seqs": seqs,
        "max_model_len": length,
        "block_size": block_size,
        "largest_graph": 0 if options.enforce_eager else graph,
        "kv_dtype_bytes": _KV_BYTES[options.kv_cache_dtype],
    }


def _take(kind: type[_Values], values: Mapping[str, Any]) -> _Values:
    """Return a dataclass of the values with the names of its fields."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _times(text: str | None) -> Mapping[str, float]:
    """Parse `token_us=1.2,attention=4`. Raises ValueError."""
    pairs = [word.partition("=") for word in (text or "").split(",") if word]
    try:
        return {name.strip().replace("-", "_"): float(factor) for name, _, factor in pairs}
    except ValueError:
        raise ValueError(f"--sim-times {text}: expected NAME=FACTOR,NAME=FACTOR") from None


def _hiccups(text: str | None) -> Hiccups | None:
    """Parse `60:0.05`. Raises ValueError."""
    if text is None:
        return None
    every, _, length = text.partition(":")
    try:
        hiccups = float(every), float(length)
    except ValueError:
        raise ValueError(f"--sim-hiccups {text}: expected seconds:seconds, as 60:0.05") from None
    if hiccups[0] <= 0 or hiccups[1] < 0:
        raise ValueError(
            f"--sim-hiccups {text}: the time between them must be positive, the length not negative"
        )
    return hiccups


def _check(options: argparse.Namespace, batched: int, seqs: int, length: int, block_size: int) -> None:
    """Check the simulated flags as vLLM 0.32 does, with its messages. Raises InvalidFlagError."""
    at_least_one = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": batched,
        "max_num_active_seqs": options.max_num_active_seqs,
        "max_num_scheduled_tokens": options.max_num_scheduled_tokens,
        "max_model_len": length,
        "block_size": block_size,
        "stream_interval": options.stream_interval,
        "tensor_parallel_size": options.tensor_parallel_size,
        "data_parallel_size": options.data_parallel_size,
        "num_gpu_blocks_override": options.num_gpu_blocks_override,
    }
    for name, value in at_least_one.items():
        if value is not None and value < 1:
            raise InvalidFlagError(
                "SchedulerConfig", f"{name} should be greater than or equal to 1, got {value}"
            )
    if not 0 < options.gpu_memory_utilization <= 1:
        raise InvalidFlagError(
            "CacheConfig", f"gpu_memory_utilization should be in (0, 1], got {options.gpu_memory_utilization}"
        )
    if not 0 <= options.watermark < 1:
        raise InvalidFlagError("SchedulerConfig", f"watermark should be in [0, 1), got {options.watermark}")
    if options.sim_speed <= 0 or options.sim_start_s < 0 or options.sim_jitter < 0:
        raise InvalidFlagError(
            "Simulation", "--sim-speed must be positive, --sim-start-s and --sim-jitter not negative"
        )
    if batched < seqs:
        raise InvalidFlagError(
            "SchedulerConfig",
            f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs}).",
        )
    if batched < length and not options.enable_chunked_prefill:
        raise InvalidFlagError(
            "SchedulerConfig",
            f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({length}). This effectively "
            "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer "
            "sequences.",
        )
    if (options.max_num_active_seqs or 0) > seqs:
        raise InvalidFlagError(
            "SchedulerConfig",
            f"max_num_active_seqs ({options.max_num_active_seqs}) must be <= max_num_seqs ({seqs}).",
        )
    if not 0 <= options.long_prefill_token_threshold <= length:
        raise InvalidFlagError(
            "SchedulerConfig",
            f"long_prefill_token_threshold ({options.long_prefill_token_threshold}) cannot be greater than "
            f"the max_model_len ({length}).",
        )
