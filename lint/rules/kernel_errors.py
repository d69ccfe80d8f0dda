"""Errors in the log about kernels that a GPU, a model or a release lacks: rule F9."""

from collections.abc import Mapping

from flettner.lint.known_error import KnownError, recognisers
from flettner.vllm_facts.values import Knob, Value

_FORCED: Mapping[Knob, Value] = {"attention_backend": None, "attention_config.backend": None}
_FORCED_ENV: Mapping[str, str | None] = {"VLLM_ATTENTION_BACKEND": None}

_NO_KERNEL = (
    KnownError(
        pattern=r"(?:Model|MoE Model) (?P<name>\w+) does not support BitsAndBytes quantization",
        why="it did not start: vLLM has no bitsandbytes weights for {name}",
        expects="the original weights, or an AWQ, GPTQ or FP8 checkpoint; a newer release may support it",
        source="vllm-project/vllm#9967; vllm-project/vllm#25653",
    ),
    KnownError(
        pattern=r"No (?P<kind>\w+) MoE backend supports the deployment configuration",
        why="it did not start: no {kind} kernel for experts fits this GPU and layout",
        expects="a release with a kernel for the GPU (RTX 50 and GB10: NVFP4 from 0.19 on), "
        "another split of the experts (--enable-expert-parallel), or a checkpoint in another "
        "format",
        source=(
            "vLLM 0.32 vllm/model_executor/layers/fused_moe/oracle/nvfp4.py: "
            "'MoE backend supports the deployment'; "
            "vllm-project/vllm#35065; vllm-project/vllm#38423"
        ),
    ),
    KnownError(
        pattern=r"moe_backend='(?P<name>\w+)' is not supported for (?P<kind>\w+) MoE",
        why="it did not start: --moe-backend {name} has no kernel for {kind} experts, which the "
        "model or its MTP draft has",
        expects="it starts: vLLM chooses a back end for each of them",
        source="vLLM 0.32 vllm/model_executor/layers/fused_moe/oracle/nvfp4.py; vllm-project/vllm#56832",
        to={"moe_backend": None},
    ),
    KnownError(
        pattern=r"Could not construct fused moe op with the requested input combination",
        why="it did not start: the experts' kernels of FlashInfer were built without this format",
        expects="FlashInfer built with CUDA 12.8 or later (flashinfer-jit-cache, or vLLM's container image), "
        "or another --moe-backend",
        source="vllm-project/vllm#48541",
    ),
    KnownError(
        pattern=r"There is no module or parameter named (?P<name>\S+) in (?P<model>\w+)",
        why="it did not start: the checkpoint holds {name}, which {model} of this release does not have",
        expects="a newer release, a checkpoint made for vLLM, or the base model if this is an "
        "adapter's folder",
        source="vLLM 0.32 vllm/model_executor/models/utils.py: AutoWeightsLoader",
    ),
    KnownError(
        pattern=r"KeyError: '(?P<name>[\w.]*(?:layers|blocks|experts)\.[\w.]+)'",
        why="it did not start: the checkpoint holds {name}, which the model of this release does not have",
        expects="a newer release, or a checkpoint whose quantization leaves out the layers that "
        "vLLM keeps in 16 bit (ignore in its quantization_config)",
        source="vllm-project/llm-compressor#959; vllm-project/llm-compressor#2714",
    ),
    KnownError(
        pattern=r"FP8 KV cache not yet supported|fp8e\w+ KV cache is not supported",
        why="it did not start: the attention back end of this release reads no FP8 KV cache",
        expects="it starts, with a KV cache in the model's dtype; or a newer release",
        source="vllm-project/vllm#14221",
        to={"kv_cache_dtype": None},
        risks="the KV cache holds half as many tokens",
    ),
)
_KERNELS = (
    KnownError(
        pattern=r"ptxas fatal|does not support \.target (?P<gpu>sm_\w+)",
        why="it did not start: the ptxas that Triton calls is older than the GPU {gpu}",
        expects="it compiles with TRITON_PTXAS_PATH of a CUDA toolkit that knows the GPU "
        "(/usr/local/cuda/bin/ptxas: 12.8 for RTX 50, 13.0 for GB10), or with a newer image",
        source="vllm-project/vllm#30163; NixOS/nixpkgs#406675",
    ),
    KnownError(
        pattern=r"This kernel only supports (?P<gpu>sm\w+)",
        why="this build of vLLM has a kernel for {gpu} only, and the GPU is another",
        expects="a release or image built for the GPU",
        source="Avarok-Cybersecurity/dgx-vllm#9",
    ),
    KnownError(
        pattern=r"CUDA error: (?P<what>an illegal memory access"
        r"|unspecified launch failure|device-side assert)",
        why="a GPU kernel crashed ({what}): a bug of a kernel or a broken input, no flag that is "
        "wrong in itself",
        expects="CUDA_LAUNCH_BLOCKING=1 shows the kernel; a newer release, or without what it belongs to: "
        "speculative decoding, the forced back end, the FP8 KV cache, CUDA graphs",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting/",
        applies=lambda config: not any("This kernel only supports" in line for line in config.log),
    ),
    KnownError(
        pattern=r"out of resource: shared memory, Required: (?P<need>\d+), Hardware limit: (?P<has>\d+)",
        why="a Triton kernel needs {need} bytes of a GPU core's shared memory, and this GPU has "
        "{has}: a limit of the kernel, no flag sets its tile size",
        expects="another release, another --attention-backend (if it is an attention kernel), or "
        "another GPU; Turing has 64 KiB, too little for heads of 256 and more",
        source="vllm-project/vllm#36802; vllm-project/vllm#57712",
    ),
    KnownError(
        pattern=r"Sinks are only supported in FlashAttention 3",
        why="it did not start: this release reads attention sinks (gpt-oss) by FlashAttention 3 "
        "only, on Hopper",
        expects="vLLM 0.10.2 and later have a Triton back end with sinks for Ampere, Ada and newer GPUs",
        source="vllm-project/vllm#22331; vLLM 0.32 vllm/v1/attention/backends/flash_attn.py",
    ),
    KnownError(
        pattern=r"Selected backend (?:\w+\.)*(?P<name>\w+) is not valid for this configuration\.? "
        r"Reason:? ?(?P<reason>\[[^\]]*\])?",
        why="it did not start: the attention back end {name} does not fit this model, GPU or KV "
        "cache {reason}",
        expects="it starts: vLLM chooses a back end that fits",
        source="vLLM 0.32 vllm/platforms/cuda.py; vllm-project/vllm#40153",
        to=_FORCED,
        env=_FORCED_ENV,
    ),
    KnownError(
        pattern=r"FlashAttention only supports Ampere GPUs or newer",
        why="the attention back end needs compute capability 8.0, this GPU is older",
        expects="vLLM chooses a back end for the GPU",
        source="vllm-project/vllm#8189",
        to=_FORCED,
        env=_FORCED_ENV,
    ),
    KnownError(
        pattern=r"Model Runner V2 does not yet support: (?P<what>[^\[]+)",
        why="it did not start: VLLM_USE_V2_MODEL_RUNNER forces a model runner that lacks {what}",
        expects="it starts: vLLM chooses the model runner",
        source="vLLM 0.32 vllm/config/vllm.py: 'Model Runner V2 does not yet support'",
        env={"VLLM_USE_V2_MODEL_RUNNER": None},
    ),
)
LINTS = recognisers((*_NO_KERNEL, *_KERNELS))
