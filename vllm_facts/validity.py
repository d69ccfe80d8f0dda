"""The checks of vLLM 0.32 at start: combinations of flags, and of flags and the model, that it refuses.

Unknown values pass every check. Rule D3 checks the attention heads.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from vllm_facts.defaults import positive_int
from vllm_facts.deployment import Deployment
from vllm_facts.models.context_limit import ALLOWED, LENGTH, allows_longer_context, find_exceeded_context
from vllm_facts.sizing.effective_flags import effective_batched_tokens, json_entry, layout, speculation_method
from vllm_facts.values import Knob, Value

SCHEDULER = "vLLM 0.32 config/scheduler.py"
PARALLEL = "vLLM 0.32 config/parallel.py"
MODEL = "vLLM 0.32 config/model.py"
VLLM = "vLLM 0.32 config/vllm.py"
CLI = "vLLM 0.32 entrypoints/launchers/cli_args.py: validate_parsed_serve_args"
LORA = "vLLM 0.32 config/lora.py"

FlagMapping = Mapping[Knob, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidSetting:
    """Flags that vLLM refuses in combination, or with this model."""

    knobs: tuple[Knob, ...]
    why: str
    source: str
    to: FlagMapping = field(default_factory=dict)  # the smallest fix; empty without one


@dataclass(frozen=True, slots=True)
class _NotAbove:
    """One integer must not exceed another if both are given."""

    low: Knob
    high: Knob
    source: str
    lower: bool = False  # the fix lowers `low` instead of raising `high`

    def problems(self, case: Deployment) -> Iterator[InvalidSetting]:
        low, high = positive_int(case.setting, self.low), positive_int(case.setting, self.high)
        if low is None or high is None or low <= high:
            return
        yield InvalidSetting(
            knobs=(self.low, self.high),
            why=f"{self.low} {low} is above {self.high} {high}",
            source=self.source,
            to={self.low: high} if self.lower else {self.high: low},
        )


@dataclass(frozen=True, slots=True)
class _Without:
    """A flag that vLLM refuses without another."""

    knob: Knob
    lacks: Callable[[Deployment], bool]
    why: str
    source: str
    to: tuple[tuple[Knob, Value], ...] = ()

    def problems(self, case: Deployment) -> Iterator[InvalidSetting]:
        if not case.setting.get(self.knob) or not self.lacks(case):
            return
        yield InvalidSetting(
            knobs=(self.knob,),
            why=f"{self.knob} {self.why}",
            source=self.source,
            to=dict(self.to) or {self.knob: None},
        )


def _off(knob: Knob) -> Callable[[Deployment], bool]:
    """A check that the switch or number is missing or 0."""
    return lambda case: not case.setting.get(knob)


NOT_ABOVE = (
    _NotAbove("max_num_active_seqs", "max_num_seqs", SCHEDULER, lower=True),
    _NotAbove("long_prefill_token_threshold", "max_model_len", SCHEDULER, lower=True),
    _NotAbove("max_loras", "max_cpu_loras", LORA),
    _NotAbove("offload_num_in_group", "offload_group_size", "vLLM 0.32 config/offload.py", lower=True),
    _NotAbove("data_parallel_size_local", "data_parallel_size", PARALLEL, lower=True),
    _NotAbove("data_parallel_size", "elastic_ep_max_dp_size", PARALLEL),
)

MICROBATCHING = frozenset({"deepep_low_latency", "deepep_high_throughput", "nixl_ep"})

WITHOUT = (
    _Without(
        "enable_eplb",
        _off("enable_expert_parallel"),
        "needs enable_expert_parallel",
        PARALLEL,
        to=(("enable_expert_parallel", True),),
    ),
    _Without(
        "enable_elastic_ep",
        _off("enable_eplb"),
        "needs enable_eplb",
        PARALLEL,
    ),
    _Without(
        "enable_elastic_ep",
        lambda case: layout(case).pp > 1,
        "works without pipeline parallelism only",
        PARALLEL,
    ),
    _Without(
        "data_parallel_external_lb",
        lambda case: positive_int(case.setting, "data_parallel_size") == 1,
        "needs data_parallel_size above 1",
        PARALLEL,
    ),
    _Without("numa_bind_nodes", _off("numa_bind"), "needs numa_bind", PARALLEL, to=(("numa_bind", True),)),
    _Without("numa_bind_cpus", _off("numa_bind"), "needs numa_bind", PARALLEL, to=(("numa_bind", True),)),
    _Without(
        "mm_shm_cache_max_object_size_mb",
        lambda case: case.setting.get("mm_processor_cache_type") != "shm",
        "needs mm_processor_cache_type shm",
        "vLLM 0.32 config/multimodal.py",
    ),
    _Without(
        "enable_dbo",
        lambda case: case.setting.get("all2all_backend") not in MICROBATCHING,
        f"needs all2all_backend {', '.join(sorted(MICROBATCHING))}",
        VLLM,
    ),
    _Without(
        "mamba_block_size",
        lambda case: case.setting.get("enable_prefix_caching") is False,
        "needs prefix caching",
        VLLM,
    ),
    _Without(
        "enable_fault_tolerance",
        lambda case: (positive_int(case.setting, "api_server_count") or 1) > 1,
        "needs one API server",
        PARALLEL,
        to=(("api_server_count", 1),),
    ),
    _Without(
        "enable_batch_sharded_sampling",
        lambda case: layout(case).tp == 1,
        "needs tensor_parallel_size above 1",
        PARALLEL,
    ),
    _Without(
        "attention_backend",
        lambda case: json_entry(case, "attention_config", "backend") is not None,
        "and attention_config.backend exclude each other",
        "vLLM 0.32 engine/arg_utils.py",
    ),
)


def find_problems(case: Deployment) -> Iterator[InvalidSetting]:
    """Everything in the deployment that vLLM would refuse."""
    for row in (*NOT_ABOVE, *WITHOUT):
        yield from row.problems(case)
    for check in _CHECKS:
        yield from check(case)


def _budget(case: Deployment) -> Iterator[InvalidSetting]:
    """The token budget holds one token per sequence, and a full prompt without chunked prefill."""
    tokens, seqs = effective_batched_tokens(case), positive_int(case.setting, "max_num_seqs")
    length = positive_int(case.setting, "max_model_len")
    if tokens is not None and seqs is not None and tokens < seqs:
        yield InvalidSetting(
            knobs=("max_num_batched_tokens", "max_num_seqs"),
            why=f"max_num_batched_tokens {tokens} is below max_num_seqs {seqs}",
            source=SCHEDULER,
            to={"max_num_batched_tokens": seqs},
        )
    given, whole_prompts = (
        positive_int(case.setting, "max_num_batched_tokens"),
        case.setting.get("enable_chunked_prefill"),
    )
    if whole_prompts is False and given is not None and length is not None and given < length:
        yield InvalidSetting(
            knobs=("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len"),
            why=f"without chunked prefill max_num_batched_tokens {given} is below max_model_len {length}",
            source=SCHEDULER,
            to={"enable_chunked_prefill": None},
        )


def _length(case: Deployment) -> Iterator[InvalidSetting]:
    """A longer context than the model's, which vLLM accepts only with VLLM_ALLOW_LONG_MAX_MODEL_LEN."""
    found = find_exceeded_context(case)
    if found is None or allows_longer_context(case):
        return
    model = case.model.name if case.model else "the model"
    why = (
        f"max_model_len {found.asked} is above the {found.own} tokens that {model} has "
        f"(max_position_embeddings), and {ALLOWED}=1 is not set"
    )
    if found.yarn:
        why += ": YaRN alone does not raise it, max_position_embeddings is required, too"
    yield InvalidSetting(knobs=(LENGTH,), why=why, source=f"{MODEL}: _get_and_verify_max_len", to=found.to)


def _graphs(case: Deployment) -> Iterator[InvalidSetting]:
    largest = positive_int(case.setting, "max_cudagraph_capture_size")
    sizes = str(case.setting.get("cudagraph_capture_sizes") or "").split()
    if largest is None or not sizes or not all(map(str.isdecimal, sizes)):
        return
    if max(map(int, sizes)) != largest:
        yield InvalidSetting(
            knobs=("max_cudagraph_capture_size", "cudagraph_capture_sizes"),
            why=f"max_cudagraph_capture_size {largest} is not the largest of cudagraph_capture_sizes",
            source=VLLM,
            to={"max_cudagraph_capture_size": None},
        )


def _async(case: Deployment) -> Iterator[InvalidSetting]:
    """Explicit async_scheduling is refused with these methods; by default vLLM disables it."""
    method = speculation_method(case)
    if case.setting.get("async_scheduling") is True and method in {
        "ngram",
        "suffix",
        "medusa",
        "mlp_speculator",
    }:
        yield InvalidSetting(
            knobs=("async_scheduling",),
            why=f"async_scheduling is refused together with speculation by {method}",
            source=VLLM,
            to={"async_scheduling": None},
        )


def _context_parallel(case: Deployment) -> Iterator[InvalidSetting]:
    """Decode context parallelism divides tensor parallelism, and at most the copies of each KV head."""
    knob, tp = "decode_context_parallel_size", layout(case).tp
    dcp = positive_int(case.setting, knob) or 1
    prefill = positive_int(case.setting, "prefill_context_parallel_size") or 1
    if dcp == 1:
        return
    if prefill == 1 and tp % dcp:
        why = f"{knob} {dcp} does not divide tensor_parallel_size {tp}"
    elif case.model and not case.model.mla and case.model.kv_heads and dcp > tp // case.model.kv_heads:
        heads = case.model.kv_heads
        why = f"{knob} {dcp} is above tensor_parallel_size {tp} divided by the model's {heads} KV heads"
    else:
        return
    yield InvalidSetting(knobs=(knob, "tensor_parallel_size"), why=why, source=MODEL, to={knob: None})


def _experts(case: Deployment) -> Iterator[InvalidSetting]:
    model = case.model
    if case.setting.get("enable_expert_parallel") is True and model and model.layers and not model.experts:
        yield InvalidSetting(
            knobs=("enable_expert_parallel",),
            why=f"enable_expert_parallel is refused: {model.name} has no experts",
            source=MODEL,
            to={"enable_expert_parallel": None},
        )


def _serving(case: Deployment) -> Iterator[InvalidSetting]:
    """Checks of the API server, before and after the engine starts."""
    given = case.setting
    if given.get("enable_auto_tool_choice") is True and not given.get("tool_call_parser"):
        yield InvalidSetting(
            knobs=("enable_auto_tool_choice",),
            why=(
                "enable_auto_tool_choice needs tool_call_parser, the one for the model's family: "
                "hermes, llama3_json, mistral, openai (gpt-oss) or another"
            ),
            source=CLI,
        )
    if given.get("enable_log_outputs") is True and given.get("enable_log_requests") is not True:
        yield InvalidSetting(
            knobs=("enable_log_outputs",),
            why="enable_log_outputs needs enable_log_requests",
            source=CLI,
            to={"enable_log_requests": True},
        )
    if given.get("enable_per_request_metrics") is True and given.get("disable_log_stats") is True:
        yield InvalidSetting(
            knobs=("enable_per_request_metrics", "disable_log_stats"),
            why="enable_per_request_metrics is refused together with disable_log_stats",
            source=CLI,
            to={"disable_log_stats": None},
        )
    if given.get("lora_modules") and given.get("enable_lora") is not True:
        yield InvalidSetting(
            knobs=("lora_modules",),
            why="lora_modules needs enable_lora",
            source="vLLM 0.32 entrypoints/openai/models/serving.py, v1/engine/input_processor.py",
            to={"enable_lora": True},
        )


_CHECKS = (_budget, _length, _graphs, _async, _context_parallel, _experts, _serving)
