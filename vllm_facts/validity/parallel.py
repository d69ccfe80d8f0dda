"""Parallelism: data, experts, context, hosts. The division of the weights is in split.py."""

from collections.abc import Iterator

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import is_at_least, is_expert_parallel, layout
from flettner.vllm_facts.validity.refusal import (
    ENGINE,
    MODEL,
    PARALLEL,
    VLLM,
    InvalidSetting,
    NotAbove,
    Without,
    is_off,
)
from flettner.vllm_facts.values import Value

_LAUNCH = f"{ENGINE}: 'Invalid data-parallel launch options'"
_ELASTIC = "vllm/config/parallel.py: __post_init__"
_VERIFY = f"{MODEL}: verify_with_parallel_config"

MICROBATCHING = frozenset({"deepep_low_latency", "deepep_high_throughput", "nixl_ep"})


def _exchange(config: ServeConfig) -> Value | None:
    """The exchange between experts. Releases before 0.16 also read it from the environment."""
    if "all2all_backend" in config.setting or is_at_least(config, (0, 16)):
        return config.setting.get("all2all_backend")
    return config.env.get("VLLM_ALL2ALL_BACKEND")


NOT_ABOVE = (
    NotAbove(
        "data_parallel_size_local",
        "data_parallel_size",
        f"{PARALLEL}: 'data_parallel_size_local must be <= data_parallel_size'",
        lower=True,
    ),
    NotAbove(
        "data_parallel_size",
        "elastic_ep_max_dp_size",
        f"{_ELASTIC}: '--elastic-ep-max-dp-size must be greater than or equal to the initial "
        "data_parallel_size'",
    ),
)

WITHOUT = (
    Without(
        "enable_eplb",
        lambda config: not config.setting.get("enable_expert_parallel") and _is_dense(config),
        "needs enable_expert_parallel, and the model has no experts",
        f"{PARALLEL}: 'enable_expert_parallel must be True to use EPLB'",
    ),
    Without(
        "enable_eplb",
        lambda config: (
            not config.setting.get("enable_expert_parallel") and bool(config.model) and not _is_dense(config)
        ),
        "needs enable_expert_parallel",
        f"{PARALLEL}: 'enable_expert_parallel must be True to use EPLB'",
        to=(("enable_expert_parallel", True),),
    ),
    Without(
        "enable_eplb",
        lambda config: not config.setting.get("enable_expert_parallel") and config.model is None,
        "needs enable_expert_parallel, which vLLM takes for a model with experts only",
        f"{PARALLEL}: 'enable_expert_parallel must be True to use EPLB'; {MODEL}: "
        "_verify_with_expert_parallelism",
        by_hand="add --enable-expert-parallel if the model has experts (--model-config), else remove it",
    ),
    Without(
        "enable_eplb",
        lambda config: (
            is_expert_parallel(config) and layout(config).tp * layout(config).dp * _prefill(config) == 1
        ),
        "needs tensor, data or prefill context parallelism",
        f"{PARALLEL}: 'EPLB requires tensor, prefill-context, or data parallelism'",
    ),
    Without(
        "enable_elastic_ep",
        is_off("enable_eplb"),
        "needs enable_eplb",
        f"{_ELASTIC}: 'Elastic EP is only supported with enable_eplb=True'",
    ),
    Without(
        "enable_elastic_ep",
        lambda config: layout(config).pp > 1,
        "works without pipeline parallelism only",
        f"{_ELASTIC}: 'Elastic EP is not supported with pipeline parallelism'",
    ),
    Without(
        "data_parallel_external_lb",
        lambda config: positive_int(config.setting, "data_parallel_size") == 1,
        "needs data_parallel_size above 1",
        f"{PARALLEL}: 'data_parallel_external_lb can only be set when data_parallel_size > 1'",
    ),
    Without(
        "data_parallel_hybrid_lb",
        lambda config: config.setting.get("data_parallel_external_lb") is True,
        "and data_parallel_external_lb exclude each other",
        f"{_LAUNCH}: 'cannot be enabled together'",
    ),
    Without(
        "data_parallel_external_lb",
        lambda config: layout(config).dp > 1 and _is_dense(config),
        "is refused: the model has no experts; start independent servers",
        f"{ENGINE}: 'Non-MoE models do not support external data parallel mode'",
    ),
    Without(
        "numa_bind_nodes",
        is_off("numa_bind"),
        "needs numa_bind",
        f"{PARALLEL}: 'numa_bind_nodes and numa_bind_cpus require numa_bind=True'",
        to=(("numa_bind", True),),
    ),
    Without(
        "numa_bind_cpus",
        is_off("numa_bind"),
        "needs numa_bind",
        f"{PARALLEL}: 'numa_bind_nodes and numa_bind_cpus require numa_bind=True'",
        to=(("numa_bind", True),),
    ),
    Without(
        "enable_dbo",
        lambda config: _exchange(config) not in MICROBATCHING,
        f"needs all2all_backend {', '.join(sorted(MICROBATCHING))}",
        f"{VLLM}: 'Microbatching currently only supports the deepep_low_latency, …'",
    ),
    Without(
        "mamba_block_size",
        lambda config: config.setting.get("enable_prefix_caching") is False,
        "needs prefix caching",
        f"{VLLM}: '--mamba-block-size can only be set with --enable-prefix-caching'",
    ),
    Without(
        "enable_fault_tolerance",
        lambda config: (positive_int(config.setting, "api_server_count") or 1) > 1,
        "needs one API server",
        f"{PARALLEL}: 'Fault tolerance requires a single API server process'",
        to=(("api_server_count", 1),),
    ),
    Without(
        "enable_batch_sharded_sampling",
        lambda config: layout(config).tp == 1,
        "needs tensor_parallel_size above 1",
        f"{VLLM}: _validate_batch_sharded_sampling: 'is not supported in this configuration'",
    ),
)


def check_context_parallel(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Decode context parallelism divides tensor parallelism, and at most the copies of each KV head."""
    knob, tp, model = "decode_context_parallel_size", layout(config).tp, config.model
    dcp = positive_int(config.setting, knob) or 1
    heads = model.kv_heads if model and not model.mla else None
    if dcp == 1:
        return
    if _prefill(config) == 1 and tp % dcp:
        why = f"{knob} {dcp} does not divide tensor_parallel_size {tp}"
        source = f"{PARALLEL}: 'tp_size … must be divisible by dcp_size'"
    elif heads and dcp > tp // heads:
        why = f"{knob} {dcp} is above tensor_parallel_size {tp} divided by the model's {heads} KV heads"
        source = f"{_VERIFY}: 'exceeds the maximum supported value'"
    elif model and heads and model.heads and model.heads // heads % dcp:
        why = f"{knob} {dcp} does not divide the model's {model.heads // heads} query heads for each KV head"
        source = f"{_VERIFY}: 'number of query heads per KV head must be divisible'"
    else:
        return
    yield InvalidSetting(knobs=(knob, "tensor_parallel_size"), why=why, source=source, to={knob: None})


def check_experts(config: ServeConfig) -> Iterator[InvalidSetting]:
    if config.setting.get("enable_expert_parallel") is True and config.model and _is_dense(config):
        yield InvalidSetting(
            knobs=("enable_expert_parallel",),
            why=f"enable_expert_parallel is refused: {config.model.name} has no experts",
            source=(
                f"{MODEL}: _verify_with_expert_parallelism: 'Number of experts in the model must be "
                "greater than 0'"
            ),
            to={"enable_expert_parallel": None},
        )


def check_hosts(config: ServeConfig) -> Iterator[InvalidSetting]:
    """The hosts share the GPUs evenly."""
    nodes = positive_int(config.setting, "nnodes") or 1
    gpus = layout(config).gpus * _prefill(config)
    if nodes > 1 and gpus % nodes:
        yield InvalidSetting(
            knobs=("nnodes",),
            why=f"nnodes {nodes} does not divide the {gpus} GPUs of all parallel sizes",
            source=f"{_LAUNCH}: 'must evenly divide the total world size'",
        )


def _is_dense(config: ServeConfig) -> bool:
    """Whether the model is known to have no experts."""
    return bool(config.model and config.model.layers and not config.model.experts)


def _prefill(config: ServeConfig) -> int:
    return positive_int(config.setting, "prefill_context_parallel_size") or 1


CHECKS = (check_context_parallel, check_experts, check_hosts)
