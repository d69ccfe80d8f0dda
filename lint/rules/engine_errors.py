"""Errors in the log about formats of weights, parallel layouts and KV caches: rule F9."""

import json
import re
from collections.abc import Mapping
from math import ceil

from flettner.lint.known_error import KnownError, recognisers
from flettner.lint.rules.log import HYBRID_OFF, PINNED
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entries, layout
from flettner.vllm_facts.values import Knob, Value

_HYBRID_CONNECTORS = frozenset(
    {"MooncakeConnector", "MooncakeStoreConnector", "OffloadingConnector", "SimpleCPUOffloadConnector"}
)
"""Connectors that are SupportsHMA in 0.32."""


def _raise_batch(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The next power of two, unless the present budget holds one item already."""
    needed, present = int(match["need"]), config.setting.get("max_num_batched_tokens")
    enough = present if isinstance(present, int) and present >= needed else 1 << (needed - 1).bit_length()
    return {"max_num_batched_tokens": enough}


def _half_on_gpus(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    return {} if any("not supported on CPU" in line for line in config.log) else {"dtype": "half"}


def _pipeline_for_tensor(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    now = layout(config)
    return {"tensor_parallel_size": 1, "pipeline_parallel_size": now.tp * now.pp}


def _current_connector(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The name that the V1 engine has for LMCache's connector."""
    given = json_entries(config, "kv_transfer_config")
    if match["name"] != "LMCacheConnector" or given.get("kv_connector") != match["name"]:
        return {}
    return {"kv_transfer_config": json.dumps({**given, "kv_connector": "LMCacheConnectorV1"})}


def _raise_pinned(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The size that is needed and 1 % more; nothing if more was given since."""
    needed = ceil(float(match["need"]) * 1.01 * 1024) << 20
    given = config.setting.get(PINNED)
    return {PINNED: given if isinstance(given, int) and given >= needed else needed}


def _keep_hybrid(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    connector = json_entries(config, "kv_transfer_config").get("kv_connector")
    return {"disable_hybrid_kv_cache_manager": False} if connector in _HYBRID_CONNECTORS else {}


def _is_short_of_cache(config: ServeConfig) -> bool:
    return any("larger than the available KV cache memory" in line for line in config.log)


def _is_tensor_parallel(config: ServeConfig) -> bool:
    return layout(config).tp > 1


_WEIGHTS = (
    KnownError(
        pattern=r"for quantization method (?P<method>\w+)\. Supported dtypes: \[torch\.float16\]",
        why="it did not start: {method} weights are computed in float16 only",
        expects="it starts, in float16; on the CPU back end of old releases, which has no float16, "
        "only with another checkpoint",
        source="vllm-project/vllm#1823; vllm-project/vllm#12794",
        changes=_half_on_gpus,
        risks="float16 has a smaller range: check the answers of a model trained in bfloat16",
    ),
    KnownError(
        pattern=r"Min capability: (?P<least>\d+)\D+Current capability: (?P<has>\d+)",
        why="it did not start: the checkpoint's quantization scheme needs compute capability "
        "{least}, the GPU has {has} (75 is 7.5)",
        expects="a checkpoint in a format for this GPU (AWQ and GPTQ run from 7.5 on), or a newer GPU",
        source=(
            "vLLM 0.32 vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py: "
            "_check_scheme_supported; "
            "vllm-project/llm-compressor#1258"
        ),
    ),
    KnownError(
        pattern=r"Prequant BitsAndBytes models with tensor parallelism is not supported",
        why="it did not start: this release cannot split prequantised bitsandbytes weights by "
        "tensor parallelism",
        expects="it starts as a pipeline, which splits by layers; AWQ or GPTQ checkpoints split either way",
        source="vllm-project/vllm#13297; vllm-project/vllm#14449",
        changes=_pipeline_for_tensor,
        applies=_is_tensor_parallel,
    ),
    KnownError(
        pattern=r"BitsAndBytes load format and QLoRA adapter only support 'bitsandbytes' quantization",
        why="it did not start: --load-format bitsandbytes needs --quantization bitsandbytes",
        expects="it starts; newer releases read the format from the checkpoint and need neither flag",
        source="https://docs.vllm.ai/en/latest/features/quantization/bnb/; runpod-workers/worker-vllm#99",
        to={"quantization": "bitsandbytes"},
    ),
    KnownError(
        pattern=r"BitsAndBytes quantization and QLoRA adapter only support 'bitsandbytes' load format",
        why="it did not start: --quantization bitsandbytes needs --load-format bitsandbytes in this release",
        expects="it starts; newer releases read the format from the checkpoint and need neither flag",
        source="https://docs.vllm.ai/en/latest/features/quantization/bnb/",
        to={"load_format": "bitsandbytes"},
    ),
    KnownError(
        pattern=r"method specified in the `quantization` argument \((?P<given>[\w-]+)\)",
        why="it did not start: the checkpoint is in another format than --quantization {given}",
        expects="it starts: vLLM reads the format from the checkpoint",
        source="vLLM 0.32 vllm/config/model.py: _verify_quantization",
        to={"quantization": None},
    ),
    KnownError(
        pattern=r"Cannot find the config file for (?P<given>[\w-]+)",
        why="it did not start: --quantization {given} names a format, and the checkpoint has none",
        expects="it starts with the weights as they are; a checkpoint in that format is another repository",
        source="vLLM 0.32 vllm/model_executor/model_loader/weight_utils.py: get_quant_config",
        to={"quantization": None},
    ),
    KnownError(
        pattern=r"size_per_partition = (?P<size>\d+) is not divisible by min_thread_\w = (?P<block>\d+)",
        why="it did not start: tensor_parallel_size cuts the quantised weights into {size} columns "
        "or rows, no multiple of the kernel's {block}",
        expects="a smaller tensor_parallel_size, with a pipeline or data parallel replicas for the "
        "other GPUs, or a checkpoint in another format",
        source="vLLM 0.32 vllm/model_executor/layers/quantization/utils/marlin_utils.py: "
        "verify_marlin_supports_shape; "
        "vllm-project/vllm#13640",
        applies=_is_tensor_parallel,
    ),
    KnownError(
        pattern=r"size_per_partition = (?P<size>\d+) is not divisible by min_thread_\w = (?P<block>\d+)",
        why="it did not start: the checkpoint has quantised weights of {size} columns or rows, no "
        "multiple of the {block} that the Marlin kernel takes",
        expects="--quantization with the checkpoint's own method (gptq, awq) in place of Marlin, if the "
        "release has its kernel, or a checkpoint in another format",
        source="vLLM 0.32 vllm/model_executor/layers/quantization/utils/marlin_utils.py: "
        "verify_marlin_supports_shape; vllm-project/vllm#9913",
        applies=lambda config: not _is_tensor_parallel(config),
    ),
    KnownError(
        pattern=r"The (?:in|out)put size is not aligned with the quantized weight shape",
        why="it did not start: tensor_parallel_size cuts through the groups of the quantised weights",
        expects="a smaller tensor_parallel_size, with a pipeline or data parallel replicas for the "
        "other GPUs",
        source=(
            "vLLM 0.32 vllm/model_executor/layers/quantization/auto_awq.py: create_weights; "
            "vllm-project/vllm#2699"
        ),
        applies=_is_tensor_parallel,
    ),
    KnownError(
        pattern=r"size_k must divisible by BLOCK_SIZE_K",
        why="tensor parallelism cuts the quantised experts into parts smaller than the kernel's block",
        expects="whole experts on each GPU; or a smaller tensor_parallel_size",
        source="vllm-project/vllm#17604",
        to={"enable_expert_parallel": True},
        applies=_is_tensor_parallel,
    ),
    KnownError(
        pattern=r"partition_size = (?P<size>\d+) is not divisible by weight quantization block_[nk] = "
        r"(?P<block>\d+)",
        why="it did not start: tensor_parallel_size leaves each GPU {size} of a weight, no multiple of the "
        "{block} of a block of FP8 weights",
        expects="a smaller tensor_parallel_size, with a pipeline over the other GPUs or hosts",
        source=(
            "vLLM 0.32 vllm/model_executor/layers/quantization/utils/fp8_utils.py; vllm-project/vllm#12256"
        ),
        applies=_is_tensor_parallel,
    ),
)
_LAYOUTS = (
    KnownError(
        pattern=r"Pipeline parallelism is not supported for this model",
        why="it did not start: the draft model of speculative decoding does not support pipeline parallelism",
        expects="tensor parallelism instead of the pipeline, or no --speculative-config; MTP heads "
        "of DeepSeek and Qwen3.5 support it in 0.32",
        source=(
            "vLLM 0.32 vllm/config/speculative.py: _verify_args; "
            "vllm-project/vllm#52069; "
            "vllm-project/vllm#46994"
        ),
        applies=lambda config: bool(
            config.setting.get("speculative_config") or config.setting.get("spec_method")
        ),
    ),
    KnownError(
        pattern=r"Pipeline parallelism is not supported for this model",
        why="it did not start: vLLM cannot run this model as a pipeline",
        expects="tensor parallelism, or data parallel replicas, instead of --pipeline-parallel-size",
        source="vLLM 0.32 vllm/config/model.py: verify_with_parallel_config",
        applies=lambda config: (
            not (config.setting.get("speculative_config") or config.setting.get("spec_method"))
        ),
    ),
    KnownError(
        pattern=r"n_physical_experts=(?P<experts>\d+) must be divisible by ep_size=(?P<ranks>\d+)",
        why="it did not start: {experts} experts cannot be shared out evenly to {ranks} GPUs",
        expects="another number of GPUs (tensor x data parallel size), a pipeline, or --enable-eplb with "
        "--eplb-config.num_redundant_experts that fills the last GPU",
        source="vllm-project/vllm#52435",
    ),
    KnownError(
        pattern=r"world_size \((?P<size>\d+)\) is less than than max local gpu count \((?P<has>\d+)\)"
        r"|local_world_size \((?P<local>\d+)\) must be less than or equal to the number of visible devices "
        r"\((?P<visible>\d+)\)"
        r"|Tensor parallel size \((?P<tp>\d+)\) cannot be larger than the number of available GPUs "
        r"\((?P<gpus>\d+)\)",
        why="it did not start: the layout takes {size}{local}{tp} GPUs, this host shows {has}{visible}{gpus}",
        expects="over several hosts: --distributed-executor-backend ray, or --nnodes with "
        "--master-addr; on one host: smaller parallel sizes, or more GPUs visible "
        "(CUDA_VISIBLE_DEVICES); 0.11.1 and 0.11.2 refuse Ray over hosts by mistake",
        source="vLLM 0.32 vllm/config/parallel.py: 'World size is larger than the number of available GPUs'; "
        "vllm-project/vllm#15217",
    ),
    KnownError(
        pattern=r"AssertionError: (?P<size>\d+) is not divisible by (?P<tp>\d+)$",
        why="it did not start: {size} heads or columns of a part of the model cannot be shared out "
        "to {tp} GPUs",
        expects="a tensor_parallel_size that divides {size}; for the vision part of newer releases "
        "--mm-encoder-tp-mode data",
        source="vLLM 0.32 vllm/distributed/utils.py: divide; vllm-project/vllm#8097",
        applies=_is_tensor_parallel,
    ),
    KnownError(
        pattern=r"max_tokens_per_mm_item \((?P<need>\d+)\) is larger than max_num_batched_tokens",
        why="it did not start: one image, video or audio takes {need} tokens, more than "
        "max_num_batched_tokens, and this model reads an item in one piece",
        expects="it starts",
        source="vLLM 0.32 vllm/v1/core/encoder_cache_manager.py; decoderesearch/interp-engine#2",
        changes=_raise_batch,
        risks="more memory for activations",
    ),
    KnownError(
        pattern=r"block_size \((?P<need>\d+)\) must be <= max_num_batched_tokens",
        why="it did not start: prefix caching of this hybrid model works in blocks of {need} "
        "tokens, more than max_num_batched_tokens",
        expects="it starts",
        source="vllm-project/vllm#34445",
        changes=_raise_batch,
        risks="more memory for activations",
    ),
)
_CACHES = (
    KnownError(
        pattern=r"max seq len \(\d+\), \(?(?P<need>\d+\.\d+) GiB KV cache is needed",
        why="it did not start: one request of the full length needs {need} GiB of KV cache, more than "
        "kv_cache_memory_bytes gives",
        expects="it starts, if the GPU has that memory; or with a shorter max_model_len",
        source="vLLM 0.32 vllm/v1/core/kv_cache_utils.py",
        changes=_raise_pinned,
        applies=lambda config: bool(config.setting.get(PINNED)),
        risks="an out of memory, if less is free",
    ),
    KnownError(
        pattern=re.escape(HYBRID_OFF),
        why="it did not start: --kv-transfer-config turned the hybrid KV cache manager off, so that "
        "sliding-window and state-space layers take as much KV cache as full attention, more than there is",
        expects="the context fits as without the connector; releases since vllm-project/vllm#41847 keep the "
        "manager for connectors that support it",
        source=(
            "vLLM 0.32 vllm/config/vllm.py: 'Turning off hybrid kv cache manager'; vllm-project/vllm#41830"
        ),
        changes=_keep_hybrid,
        applies=_is_short_of_cache,
    ),
    KnownError(
        pattern=r"failed to convert the KV cache specs|Failed to promote local KV cache specs",
        why="it did not start: the KV connector turned the hybrid KV cache manager off, which this "
        "model needs",
        expects="a connector that supports hybrid models (OffloadingConnector, SimpleCPUOffloadConnector, "
        "MooncakeStoreConnector in 0.32), a newer release, or no connector",
        source=(
            "vLLM 0.32 vllm/v1/core/kv_cache_utils.py: 'Failed to promote local KV cache specs'; "
            "vllm-project/vllm#42911"
        ),
    ),
    KnownError(
        pattern=r"Unsupported connector type: (?P<name>\w+)",
        why="it did not start: this release has no KV connector {name}",
        expects="a connector of this release; LMCache's is LMCacheConnectorV1",
        source="vLLM 0.32 vllm/distributed/kv_transfer/kv_connector/factory.py; vllm-project/vllm#15960",
        changes=_current_connector,
    ),
    KnownError(
        pattern=r"Expandable segments are not compatible with memory pool",
        why="it did not start: sleep mode's memory pool excludes expandable segments of PyTorch's allocator",
        expects="it starts",
        source="vllm-project/vllm#14189; pytorch/pytorch#147851",
        env={"PYTORCH_CUDA_ALLOC_CONF": None, "PYTORCH_ALLOC_CONF": None},
    ),
)
LINTS = recognisers((*_WEIGHTS, *_LAYOUTS, *_CACHES))
