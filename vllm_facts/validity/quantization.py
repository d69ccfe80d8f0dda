"""Quantized weights against the GPU's compute capability and the dtype."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.dtypes import dtype_in_force
from flettner.vllm_facts.sizing.effective_flags import is_older_than, text_of
from flettner.vllm_facts.validity.refusal import VLLM, InvalidSetting, capability_text

_SOURCE = f"{VLLM}: _get_quantization_config"
_EITHER, _BFLOAT16 = frozenset({"float16", "bfloat16"}), frozenset({"bfloat16"})
_ANY = _EITHER | {"float32"}

METHODS: Mapping[str, tuple[tuple[int, int], frozenset[str]]] = MappingProxyType(
    {
        "auto_awq": ((7, 5), _EITHER),
        "auto_gptq": ((6, 0), _EITHER),
        "awq": ((7, 5), _EITHER),
        "awq_marlin": ((7, 5), _EITHER),
        "compressed-tensors": ((7, 0), _ANY),
        "deepseek_v4_fp8": ((7, 5), _EITHER),
        "experts_int8": ((8, 0), _EITHER),
        "fbgemm_fp8": ((8, 0), _EITHER),
        "fp8": ((7, 5), _EITHER),
        "fp8_per_block": ((7, 5), _EITHER),
        "fp8_per_channel": ((7, 5), _EITHER),
        "fp8_per_tensor": ((7, 5), _EITHER),
        "fp_quant": ((10, 0), _BFLOAT16),
        "gpt_oss_mxfp4": ((8, 0), _BFLOAT16),
        "gptq": ((6, 0), _EITHER),
        "gptq_marlin": ((6, 0), _EITHER),
        "humming": ((7, 5), _EITHER),
        "inc": ((6, 0), _EITHER),
        "int8_per_channel_weight_only": ((7, 5), _EITHER),
        "modelopt": ((8, 0), _EITHER),
        "modelopt_fp4": ((7, 5), _EITHER),
        "modelopt_mixed": ((7, 5), _EITHER),
        "modelopt_mxfp8": ((8, 0), _BFLOAT16),
        "moe_wna16": ((7, 0), _EITHER),
        "mxfp4": ((8, 0), _BFLOAT16),
        "mxfp8": ((8, 0), _BFLOAT16),
        "nvfp4_per_token": ((7, 5), _EITHER),
        "online": ((7, 5), _EITHER),
        "quark": ((7, 0), _EITHER),
        "torchao": ((7, 5), _ANY),
    }
)
"""The least compute capability and the dtypes of each: get_min_capability, get_supported_act_dtypes."""

_OLDER = {"fp8": (8, 0)}  # before Turing got the Marlin kernels
MARLIN_ON_TURING = (0, 14)  # vllm-project/vllm#29901

_SPELLINGS = {"auto-round": "inc", "auto_round": "inc", "compressed_tensors": "compressed-tensors"}


def method_in_force(config: ServeConfig) -> str:
    """The quantization of the checkpoint, else the one that `--quantization` asks for; "" without one."""
    name = (config.model.quantization if config.model else "") or text_of(config, "quantization")
    name = name.lower()
    name = _SPELLINGS.get(name, name)
    return name if name in METHODS else _SPELLINGS.get(name.replace("-", "_"), name.replace("-", "_"))


def refuses_dtype(config: ServeConfig, dtype: str) -> bool:
    """Whether the quantization in force has no kernels for `dtype`."""
    known = METHODS.get(method_in_force(config))
    return known is not None and bool(dtype) and dtype not in known[1]


def check_capability(config: ServeConfig) -> Iterator[InvalidSetting]:
    method = method_in_force(config)
    capability = config.card.capability if config.card else None
    if config.card is None or capability is None or method not in METHODS:
        return
    least = METHODS[method][0]
    if is_older_than(config, MARLIN_ON_TURING):
        least = _OLDER.get(method, least)
    if capability >= least:
        return
    asked = not (config.model and config.model.quantization)
    what = (
        f"--quantization {text_of(config, 'quantization')}"
        if asked
        else f"{_name(config)} ({method} weights)"
    )
    yield InvalidSetting(
        rule="H2",
        why=(
            f"{what} on {config.card.name} (compute capability {capability_text(capability)}): {method} "
            f"needs {capability_text(least)}, the server does not start"
        ),
        source=f"{_SOURCE}: 'The quantization method {method} is not supported for the current GPU. Minimum "
        f"capability: {least[0] * 10 + least[1]}.'",
        to={"quantization": None} if asked else {},
        expects=(
            "it starts with the weights as they are, if they fit"
            if asked
            else "a checkpoint in GPTQ, or in AWQ from 7.5 on, or a newer GPU"
        ),
        risks="the weights take more memory" if asked else "none",
    )


def check_dtype(config: ServeConfig) -> Iterator[InvalidSetting]:
    method, dtype = method_in_force(config), dtype_in_force(config)
    if not refuses_dtype(config, dtype) or any(check_capability(config)):
        return
    given = text_of(config, "dtype")
    automatic = replace(
        config, setting={knob: value for knob, value in config.setting.items() if knob != "dtype"}
    )
    mends = (
        bool(given) and given.lower() != "auto" and not refuses_dtype(automatic, dtype_in_force(automatic))
    )
    shown = f"--dtype {given}" if given else f"{dtype}, which vLLM chooses for this GPU"
    yield InvalidSetting(
        rule="H2",
        why=(
            f"{shown}: {method} weights ({_name(config)}) run in {', '.join(sorted(METHODS[method][1]))} only"
        ),
        source=f"{_SOURCE}: 'torch.{dtype} is not supported for quantization method {method}.'",
        to={"dtype": None} if mends else {},
        expects="it starts, in the dtype that vLLM chooses"
        if mends
        else "another checkpoint, or a newer GPU",
        risks="none known",
    )


def _name(config: ServeConfig) -> str:
    return config.model.name if config.model else "the model"


CHECKS = (check_capability, check_dtype)
