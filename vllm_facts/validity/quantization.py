"""Quantized weights against the GPU's compute capability and the dtype."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from flettner.vllm_facts.deployment import Deployment
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


def method_in_force(case: Deployment) -> str:
    """The quantization of the checkpoint, else the one that `--quantization` asks for; "" without one."""
    name = (case.model.quantization if case.model else "") or text_of(case, "quantization")
    name = name.lower()
    name = _SPELLINGS.get(name, name)
    return name if name in METHODS else _SPELLINGS.get(name.replace("-", "_"), name.replace("-", "_"))


def refuses_dtype(case: Deployment, dtype: str) -> bool:
    """Whether the quantization in force has no kernels for `dtype`."""
    known = METHODS.get(method_in_force(case))
    return known is not None and bool(dtype) and dtype not in known[1]


def check_capability(case: Deployment) -> Iterator[InvalidSetting]:
    method = method_in_force(case)
    capability = case.card.capability if case.card else None
    if case.card is None or capability is None or method not in METHODS:
        return
    least = METHODS[method][0]
    if is_older_than(case, MARLIN_ON_TURING):
        least = _OLDER.get(method, least)
    if capability >= least:
        return
    asked = not (case.model and case.model.quantization)
    what = f"--quantization {text_of(case, 'quantization')}" if asked else f"{_name(case)} ({method} weights)"
    yield InvalidSetting(
        rule="H2",
        knobs=("quantization",),
        why=(
            f"{what} on {case.card.name} (compute capability {capability_text(capability)}): {method} needs "
            f"{capability_text(least)}, the server does not start"
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


def check_dtype(case: Deployment) -> Iterator[InvalidSetting]:
    method, dtype = method_in_force(case), dtype_in_force(case)
    if not refuses_dtype(case, dtype) or any(check_capability(case)):
        return
    given = text_of(case, "dtype")
    automatic = replace(
        case, setting={knob: value for knob, value in case.setting.items() if knob != "dtype"}
    )
    mends = (
        bool(given) and given.lower() != "auto" and not refuses_dtype(automatic, dtype_in_force(automatic))
    )
    shown = f"--dtype {given}" if given else f"{dtype}, which vLLM chooses for this GPU"
    yield InvalidSetting(
        rule="H2",
        knobs=("dtype", "quantization"),
        why=f"{shown}: {method} weights ({_name(case)}) run in {', '.join(sorted(METHODS[method][1]))} only",
        source=f"{_SOURCE}: 'torch.{dtype} is not supported for quantization method {method}.'",
        to={"dtype": None} if mends else {},
        expects="it starts, in the dtype that vLLM chooses"
        if mends
        else "another checkpoint, or a newer GPU",
        risks="none known",
    )


def _name(case: Deployment) -> str:
    return case.model.name if case.model else "the model"


CHECKS = (check_capability, check_dtype)
