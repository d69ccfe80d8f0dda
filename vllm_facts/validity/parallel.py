"""Parallelism: data, experts, context, hosts. The division of the weights is in split.py."""

from collections.abc import Iterator

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import is_at_least, is_expert_parallel, layout, patch_number
from flettner.vllm_facts.sizing.parallel_layouts import ELSEWHERE
from flettner.vllm_facts.validity.refusal import ENGINE, MODEL, PARALLEL, InvalidSetting
from flettner.vllm_facts.validity.split import GPUS

_LAUNCH = f"{ENGINE}: 'Invalid data-parallel launch options'"
_VERIFY = f"{MODEL}: verify_with_parallel_config"

WITHOUT_RAY = (0, 11, 1)
"""Since then Ray must be named (vllm-project/vllm#25775, vllm-project/vllm#29447)."""

MICROBATCHING = frozenset({"deepep_low_latency", "deepep_high_throughput", "nixl_ep"})


def dense_and_not_expert_parallel(config: ServeConfig) -> bool:
    return not config.setting.get("enable_expert_parallel") and _is_dense(config)


def sparse_and_not_expert_parallel(config: ServeConfig) -> bool:
    return not config.setting.get("enable_expert_parallel") and bool(config.model) and not _is_dense(config)


def unknown_and_not_expert_parallel(config: ServeConfig) -> bool:
    return not config.setting.get("enable_expert_parallel") and config.model is None


def has_one_rank_of_experts(config: ServeConfig) -> bool:
    return is_expert_parallel(config) and layout(config).tp * layout(config).dp * _prefill(config) == 1


def has_pipeline(config: ServeConfig) -> bool:
    return layout(config).pp > 1


def has_no_tensor_parallelism(config: ServeConfig) -> bool:
    return layout(config).tp == 1


def replicates_dense_model(config: ServeConfig) -> bool:
    return layout(config).dp > 1 and _is_dense(config)


def has_exchange_without_microbatches(config: ServeConfig) -> bool:
    """Releases before 0.16 also read the exchange between experts from the environment."""
    exchange = config.setting.get("all2all_backend")
    if "all2all_backend" not in config.setting and not is_at_least(config, (0, 16)):
        exchange = config.env.get("VLLM_ALL2ALL_BACKEND")
    return exchange not in MICROBATCHING


def has_several_api_servers(config: ServeConfig) -> bool:
    return (positive_int(config.setting, "api_server_count") or 1) > 1


CONDITIONS = (
    *(dense_and_not_expert_parallel, sparse_and_not_expert_parallel, unknown_and_not_expert_parallel),
    *(has_one_rank_of_experts, has_pipeline, has_no_tensor_parallelism, replicates_dense_model),
    *(has_exchange_without_microbatches, has_several_api_servers),
)
"""Of rows in refusals.toml."""


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
    yield InvalidSetting(why=why, source=source, to={knob: None})


def check_experts(config: ServeConfig) -> Iterator[InvalidSetting]:
    if config.setting.get("enable_expert_parallel") is True and config.model and _is_dense(config):
        yield InvalidSetting(
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
            why=f"nnodes {nodes} does not divide the {gpus} GPUs of all parallel sizes",
            source=f"{_LAUNCH}: 'must evenly divide the total world size'",
        )


def check_cluster(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Since 0.11.1 the GPUs of other hosts count only where the flags name how to reach them."""
    several = (config.hosts or 1) > 1 or config.ray
    named = ("distributed_executor_backend", "nnodes", *ELSEWHERE)
    if not several or config.gpus is None or any(config.setting.get(knob) is not None for knob in named):
        return
    release, shape = patch_number(config), layout(config)
    if release is None or release < WITHOUT_RAY or shape.gpus <= config.gpus:
        return
    yield InvalidSetting(
        why=f"tensor {shape.tp} x pipeline {shape.pp} takes {shape.gpus} GPUs, and this host has "
        f"{config.gpus}: "
        "since 0.11.1 vLLM looks for others only with --distributed-executor-backend ray or --nnodes",
        source=f"{GPUS}; vllm-project/vllm#25775; vllm-project/vllm#29447",
        to={"distributed_executor_backend": "ray"} if config.ray else {},
        expects="" if config.ray else "it starts with --nnodes and --master-addr, or with Ray on all hosts",
    )


def _is_dense(config: ServeConfig) -> bool:
    """Whether the model is known to have no experts."""
    return bool(config.model and config.model.layers and not config.model.experts)


def _prefill(config: ServeConfig) -> int:
    return positive_int(config.setting, "prefill_context_parallel_size") or 1


CHECKS = (check_context_parallel, check_experts, check_hosts, check_cluster)
