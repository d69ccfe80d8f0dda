"""The division of the weights over the GPUs of tensor parallelism, by the model's sizes."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.effective_flags import (
    is_at_least,
    is_expert_parallel,
    is_too_sparse,
    layout,
    text_of,
)
from flettner.vllm_facts.sizing.parallel_layouts import count_hosts, exceeds_host
from flettner.vllm_facts.validity.refusal import MODEL, InvalidSetting

HEADS = (
    f"{MODEL}: verify_with_parallel_config: 'Total number of attention heads must be divisible by tensor "
    "parallel size'; vllm/distributed/utils.py: divide"
)
GPUS = "vllm/config/parallel.py: 'World size is larger than the number of available GPUs in this node'"
REFINED_SINCE, BEFORE_REFINED = (0, 32), "0.25.0"  # the versions that were read
FINEST = 32  # sides of the block that it can divide the checkpoint's into

BLOCKS = (
    "vllm/model_executor/layers/quantization/utils/fp8_utils.py: validate_fp8_block_shape_moe: "
    "'is not divisible by weight quantization block_n'; "
    "vllm/model_executor/layers/fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape; "
    "vllm-project/vllm#17569"
)


def check_heads(config: ServeConfig) -> Iterator[InvalidSetting]:
    shape, model = layout(config), config.model
    if model and (reason := why_indivisible(model, shape.tp)):
        yield InvalidSetting(
            rule="D3",
            why=f"--tensor-parallel-size {shape.tp}: {reason} ({model.name})",
            source=HEADS,
        )
    elif exceeds_host(config) and not (config.start is not None and config.start.serves):
        yield InvalidSetting(
            rule="D3",
            why=(
                f"tensor {shape.tp} x pipeline {shape.pp} x data {shape.dp} takes {shape.gpus} GPUs of "
                f"{_describe_gpus(config)}"
            ),
            source=GPUS,
        )


def _describe_gpus(config: ServeConfig) -> str:
    hosts = count_hosts(config) or 1
    if hosts > 1:
        return f"{hosts} hosts with {config.gpus} each"
    return f"{config.gpus} (GPUs of several hosts need --distributed-executor-backend ray, or --nnodes)"


def check_expert_width(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Without expert parallelism each expert is divided over tensor and data parallelism."""
    model, shape = config.model, layout(config)
    shares = shape.tp * shape.dp
    if model is None or not model.experts or not model.moe_intermediate or is_expert_parallel(config):
        return
    if why_indivisible(model, shape.tp):
        return  # vLLM checks the heads first, and another size may divide the experts, too
    share, rest = divmod(model.moe_intermediate, shares)
    name, width = model.name, f"moe_intermediate_size {model.moe_intermediate}"
    if rest:
        yield _indivisible(
            config,
            f"{name}: {width} cannot be shared out to {shares} GPUs",
            "vllm/model_executor/layers/fused_moe/config.py: 'assert self.intermediate_size % tp_size == 0'",
        )
        return
    block = model.weight_block
    if block is None or shares == 1 or (share % block[0] == 0 and share % block[1] == 0):
        return
    finer = can_refine(block, share, model.hidden_size or share) and not _is_backend_forced(config)
    if finer and (is_at_least(config, REFINED_SINCE) or not config.version):
        return
    side = block[0] if share % block[0] else block[1]
    yield _indivisible(
        config,
        f"{name}: {width} over {shares} GPUs leaves {share} for each, no multiple of the FP8 block, {side}"
        + (" (vLLM 0.32 divides the blocks, for slower kernels)" if finer else ""),
        BLOCKS,
    )


def divides_blocks(config: ServeConfig) -> bool:
    """Whether the experts start only on a release that divides the blocks, and the release is not known."""
    if config.version:
        return False
    return any(True for _ in check_expert_width(replace(config, version=BEFORE_REFINED))) and not any(
        True for _ in check_expert_width(config)
    )


def can_refine(block: tuple[int, int], share: int, hidden: int) -> bool:
    """Whether vLLM 0.32 divides the blocks of an expert's share evenly (refine_fp8_moe_block_shape)."""
    return gcd(*block, share, hidden) >= FINEST


def _indivisible(config: ServeConfig, why: str, source: str) -> InvalidSetting:
    lifts = "--enable-expert-parallel keeps each expert whole on one GPU"
    return InvalidSetting(
        why=why,
        source=source,
        to={"enable_expert_parallel": True},
        expects=f"it starts: {lifts}",
        risks=(
            "so few experts are active for a token that the exchange may cost more than it saves: "
            "compare with fewer GPUs"
            if is_too_sparse(config)
            else "the exchange between GPUs differs: compare with a smaller tensor_parallel_size"
        ),
    )


def _is_backend_forced(config: ServeConfig) -> bool:
    """Whether a MoE backend is named, which may lack kernels for the divided blocks."""
    return text_of(config, "moe_backend") not in ("", "auto", "triton")


CHECKS = (check_heads, check_expert_width)
