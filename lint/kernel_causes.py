"""What rows of known errors ask or change where a library of kernels is the cause. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from flettner.lint.rules.environment import RDNA4
from flettner.lint.sleep_causes import sleeps_at_crash
from flettner.vllm_facts.code_areas import name_part
from flettner.vllm_facts.drafts import find_flags
from flettner.vllm_facts.releases.history import values_in
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    is_at_least,
    is_older_than,
    is_sparse,
    json_entries,
    json_entry,
    layout,
    number_of,
    release_number,
    remove_json_entry,
    text_of,
)
from flettner.vllm_facts.start_facts import LONGEST_LINE, find_last
from flettner.vllm_facts.validity.precision import ADA
from flettner.vllm_facts.values import Knob, Value

_COMPILATION, _PASSES, _FUSION = "compilation_config", "pass_config", "fuse_allreduce_rms"
_MODE, _IN_PARTS = "cudagraph_mode", "PIECEWISE"
_WHOLE_GRAPHS_SINCE = (0, 17)  # with decode context parallelism
_NO_CASCADES, _NO_CASCADES_SINCE = "disable_cascade_attn", (0, 18)
_OLD_NVCC = re.compile(
    r"nvcc fatal *: (?:Unknown option|Unsupported gpu architecture|Value '[^']{1,40}' is not)"
)
_KILLED = re.compile(r"FAILED: \[code=137\]|\bKilled$")
_FUSION_SINCE = (0, 13)  # the name of the pass
_GROUPLESS = ((0, 22), (0, 23))  # vllm-project/vllm#45917
_FUSED_ON = frozenset({9, 10})  # major numbers of the compute capability
_HANGS_SINCE = (0, 19)  # 0.18 ran as it was
_SPARSE_ATTENTION = re.compile(r"deepseek-v(?:3\.2|4)|glm-5")
_STRIX_HALO, _TRITON_ENCODES = re.compile(r"8060S|gfx1151"), (0, 17)
_BLOCKS = {"minimax-m3": 128, "deepseek-v4": 256}  # vllm-project/recipes
_WORKSPACE = re.compile(r"b12x_moe\.py|allocate_sm120_moe_workspace")

_CUTLASS_EXPERTS, _DISABLED = "cutlass_moe", "VLLM_DISABLED_KERNELS"
_CUTLASS_KERNEL = re.compile(r"Selected (?P<name>Cutlass\w{1,60}) for ")
_WITHOUT_SINKS = re.compile(r"decode_backend=xqa\b[^\n]{0,120}arch=sm12")
_ONE_ENGINE = (0, 11)  # the first release without the V0 engine
_BACKEND, _BACKEND_VARIABLE = "attention_backend", "VLLM_ATTENTION_BACKEND"
_ATTENDS = re.compile(
    r'File "[^"]*(?:attention/backends|flashinfer/(?:prefill|decode|mla|cascade|xqa)|flash_attn)'
)
_FITTING = re.compile(r"Using (?P<name>\w+) attention backend out of potential backends: (?P<all>.{1,400})")


def leaves_backend_open(config: ServeConfig) -> bool:
    """Whether vLLM chooses the attention back end."""
    given = text_of(config, _BACKEND) or text_of(config, "attention_config.backend")
    by_variable = config.env.get(_BACKEND_VARIABLE)
    return not (given or by_variable or json_entry(config, "attention_config", "backend"))


def name_next_backend(config: ServeConfig, trace: Sequence[str]) -> str:
    """The other back end, if a traceback passes through the code of the one that vLLM chose."""
    other = _find_next_backend(config) if any(map(_ATTENDS.search, trace)) else ""
    return f"--attention-backend {other}, which the log lists as fitting, too" if other else ""


def next_backend(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    other = _find_next_backend(config)
    return {_BACKEND: other} if other else {}


def _find_next_backend(config: ServeConfig) -> str:
    """The next of the attention back ends that the log lists as fitting, if vLLM chose the first; else ""."""
    told = find_last(_FITTING, config.log)
    known = values_in(_BACKEND, config.version)
    if told is None or not known or not leaves_backend_open(config):
        return ""
    others = (name for name in re.findall(r"'(\w+)'", told["all"]) if name != told["name"] and name in known)
    return next(others, "")


def leave_part_out(match: re.Match[str], _: ServeConfig) -> Mapping[str, str | None]:
    """The variable of the part of AITER that the kernel's name tells, off."""
    variable = name_part((match[0],))
    return {variable: "0"} if variable else {}


def sparse_block_size(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The block that the recipe of the model's family has, if it is known."""
    name = text_of(config, "model").lower()
    size = next((size for family, size in _BLOCKS.items() if family in name), None)
    return {} if size is None else {"block_size": size}


def needs_deep_gemm(config: ServeConfig) -> bool:
    """Whether the model has sparse attention, whose index DeepGEMM alone computes."""
    return bool(_SPARSE_ATTENTION.search(text_of(config, "model").lower()))


def does_without_deep_gemm(config: ServeConfig) -> bool:
    return not needs_deep_gemm(config)


def without_fused_reduce(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The flag of the compiler with that pass off, where its other parts are not given one by one."""
    given = json_entries(config, _COMPILATION)
    passes = given.get(_PASSES, {})
    dotted = any(knob.startswith(f"{_COMPILATION}.") for knob in config.setting)
    if dotted or not isinstance(passes, dict) or not is_at_least(config, _FUSION_SINCE):
        return {}
    return {_COMPILATION: json.dumps({**given, _PASSES: {**passes, _FUSION: False}})}


def waits_in_fused_reduce(config: ServeConfig) -> bool:
    """Whether the fused all-reduce meets over the GPUs of all engines, in releases that pass no group."""
    shape, release = layout(config), release_number(config)
    blackwell_or_hopper = config.card is not None and (config.card.capability or (0, 0))[0] in _FUSED_ON
    known = release is not None and _GROUPLESS[0] <= release <= _GROUPLESS[1] and blackwell_or_hopper
    return known and is_sparse(config) and shape.tp > 1 and shape.dp > 1


def has_fast_links(config: ServeConfig) -> bool:
    """Whether no other row names a cause of workers that do not answer."""
    return not (_has_pcie_alone(config) or waits_in_fused_reduce(config))


def exchanges_over_pcie(config: ServeConfig) -> bool:
    return _has_pcie_alone(config) and not hangs_on_rdna4(config)


def _has_pcie_alone(config: ServeConfig) -> bool:
    return layout(config).tp > 1 and config.card is not None and config.card.link == "pcie"


def hangs_on_rdna4(config: ServeConfig) -> bool:
    """Whether RCCL chooses a protocol between Radeons with which they hang."""
    rdna4 = config.card is not None and RDNA4.search(config.card.name) is not None
    chosen = config.env.get("NCCL_PROTO")
    return rdna4 and layout(config).tp > 1 and not chosen and not is_older_than(config, _HANGS_SINCE)


def fills_workspace(config: ServeConfig) -> bool:
    """Whether memory ran out in the fixed workspace of the experts' kernels that a flag chooses."""
    chosen = text_of(config, "moe_backend") == "flashinfer_b12x"
    return chosen and any(_WORKSPACE.search(line[:LONGEST_LINE]) for line in config.log)


def _graph_mode(config: ServeConfig) -> str:
    return str(json_entry(config, _COMPILATION, _MODE) or "").upper()


def replays_split_context(config: ServeConfig) -> bool:
    """Whether whole steps are replayed that are split over the context, in releases before their fix."""
    split = (number_of(config, "decode_context_parallel_size") or 1) > 1
    whole = config.setting.get("enforce_eager") is not True and _graph_mode(config) not in {"NONE", _IN_PARTS}
    return split and whole and is_older_than(config, _WHOLE_GRAPHS_SINCE)


def graphs_in_parts(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    if any(knob.startswith(f"{_COMPILATION}.") for knob in config.setting):
        return {}
    return {_COMPILATION: json.dumps({**json_entries(config, _COMPILATION), _MODE: _IN_PARTS})}


def drafts_in_parts(config: ServeConfig) -> bool:
    """Whether steps with drafts are replayed in parts, as the flags say."""
    return _graph_mode(config) == _IN_PARTS and bool(config.setting.get("speculative_config"))


def default_graph_mode(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    return remove_json_entry(config, _COMPILATION, _MODE)


def crashed_in_symmetric_memory(config: ServeConfig) -> bool:
    """Whether the frames of an error are of the memory that the GPUs share, and no better cause is known."""
    shared = any("::CUDASymmetricMemory" in line for line in config.log)
    return shared and not (
        sleeps_at_crash(config) or replays_split_context(config) or drafts_in_parts(config)
    )


def has_no_known_crash(config: ServeConfig) -> bool:
    """True if no other row names the cause of a crash: a kernel for another GPU, a CUDA graph, or sleep."""
    foreign = any("This kernel only supports" in line for line in config.log)
    causes = (sleeps_at_crash, replays_split_context, drafts_in_parts, crashed_in_symmetric_memory)
    return not (foreign or any(cause(config) for cause in causes))


def encodes_on_strix_halo(config: ServeConfig) -> bool:
    """Whether it is the GPU of the reports, and a release whose Triton kernels attend in encoders."""
    named = config.card is not None and _STRIX_HALO.search(config.card.name) is not None
    return named and not is_older_than(config, _TRITON_ENCODES)


def attends_in_cascades(config: ServeConfig) -> bool:
    """Whether common beginnings are computed apart, by FlashAttention 2: before 0.18, below Hopper."""
    capability = config.card.capability if config.card else None
    on_ampere = capability is not None and capability[0] == 8  # noqa: PLR2004
    return on_ampere and is_older_than(config, _NO_CASCADES_SINCE) and not config.setting.get(_NO_CASCADES)


def compilers_were_killed(config: ServeConfig) -> bool:
    """Whether the system ended a process for lack of memory, while kernels were compiled."""
    return any(map(_KILLED.search, _read_lines(config)))


def _read_lines(config: ServeConfig) -> Iterator[str]:
    return (line[:LONGEST_LINE] for line in config.log)


def compilers_ended(config: ServeConfig) -> bool:
    """Whether no other row names why the compilers failed: the system ended them, or nvcc is too old."""
    return not any(_KILLED.search(line) or _OLD_NVCC.search(line) for line in _read_lines(config))


def may_lack_types(config: ServeConfig) -> bool:
    """Whether the GPU may be one without bfloat16 or FP8."""
    capability = config.card.capability if config.card else None
    return capability is None or capability < ADA


def has_types(config: ServeConfig) -> bool:
    return not may_lack_types(config)


def without_drafts(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    return dict.fromkeys(find_flags(config.setting))


def triton_for_cutlass(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """Triton in place of CUTLASS, for experts or other layers, where the release has a flag for it."""
    knob = "moe_backend" if any(_CUTLASS_EXPERTS in line for line in config.log) else "linear_backend"
    chosen = text_of(config, knob) not in {"", "auto", "cutlass"}
    return {} if chosen or "triton" not in (values_in(knob, config.version) or ()) else {knob: "triton"}


def disable_cutlass(match: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """By a variable, where the release lacks the flag and its log names the kernel."""
    if triton_for_cutlass(match, config):
        return {}
    named = {found["name"] for line in config.log if (found := _CUTLASS_KERNEL.search(line[:LONGEST_LINE]))}
    return {_DISABLED: ",".join(sorted(named))} if named and _DISABLED not in config.env else {}


def has_two_engines(config: ServeConfig) -> bool:
    """Whether VLLM_USE_V1=0 may choose the earlier engine."""
    return is_older_than(config, _ONE_ENGINE) and config.env.get("VLLM_USE_V1") != "0"


def attends_with_sinks(config: ServeConfig) -> bool:
    """False if another row names the attention that leaves the sinks out."""
    return not any(_WITHOUT_SINKS.search(line[:LONGEST_LINE]) for line in config.log)


def forces_v1(config: ServeConfig) -> bool:
    return config.env.get("VLLM_USE_V1") == "1"


def leave_backend_open(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """The variable of a back end that only the V1 engine has goes with that engine."""
    return {_BACKEND_VARIABLE: None} if config.env.get(_BACKEND_VARIABLE, "").endswith("_V1") else {}


def forces_marlin(config: ServeConfig) -> bool:
    return "VLLM_TEST_FORCE_FP8_MARLIN" in config.env


def chooses_kernels(config: ServeConfig) -> bool:
    return not forces_marlin(config)


def forces_aiter(config: ServeConfig) -> bool:
    return "VLLM_ROCM_USE_AITER" in config.env


def is_in_fp4(config: ServeConfig) -> bool:
    return "fp4" in text_of(config, "model").lower()


def forces_aiter_in_fp4(config: ServeConfig) -> bool:
    return forces_aiter(config) and not is_in_fp4(config)


def leaves_aiter_off(config: ServeConfig) -> bool:
    return not forces_aiter(config)


def forces_inductor_anew(config: ServeConfig) -> bool:
    return "TORCHINDUCTOR_FORCE_DISABLE_CACHES" in config.env


def keeps_inductor_caches(config: ServeConfig) -> bool:
    return not forces_inductor_anew(config)


FUNCTIONS = (
    may_lack_types,
    has_types,
    without_drafts,
    triton_for_cutlass,
    disable_cutlass,
    has_two_engines,
    forces_v1,
    attends_with_sinks,
    leave_backend_open,
    leaves_backend_open,
    next_backend,
    leave_part_out,
    sparse_block_size,
    does_without_deep_gemm,
    needs_deep_gemm,
    without_fused_reduce,
    waits_in_fused_reduce,
    has_fast_links,
    exchanges_over_pcie,
    hangs_on_rdna4,
    fills_workspace,
    replays_split_context,
    graphs_in_parts,
    drafts_in_parts,
    default_graph_mode,
    crashed_in_symmetric_memory,
    has_no_known_crash,
    encodes_on_strix_halo,
    attends_in_cascades,
    compilers_were_killed,
    compilers_ended,
    is_in_fp4,
    forces_marlin,
    chooses_kernels,
    forces_aiter,
    forces_aiter_in_fp4,
    leaves_aiter_off,
    forces_inductor_anew,
    keeps_inductor_caches,
)
"""Those that a row may name."""
