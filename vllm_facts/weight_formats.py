"""Bytes per parameter of the formats in which models are published."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIXTEEN_BIT = 2.0

_HALVES = frozenset({"bfloat16", "float16", "half", "bf16", "fp16", "float32", "float"})
"""A checkpoint in float32 is loaded as 16 bit too: vLLM's `--dtype auto`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """`method`: as vLLM's `--quantization` has it. `size`: bytes of a quantized parameter with its scales."""

    method: str
    size: float | None


NONE = WeightFormat(method="", size=SIXTEEN_BIT)
FP8 = WeightFormat(method="fp8", size=1.0)
MXFP4 = WeightFormat(method="mxfp4", size=0.53125)  # a scale of 8 bit for each 32

# 4 bits; scales of 16 bit and zeros of 4 bit for each group of 128: 4.16 bits
_INT4, _INT8 = 0.52, 1.01

_WORDS = {
    "awq": WeightFormat(method="awq", size=_INT4),
    "gptq": WeightFormat(method="gptq", size=_INT4),
    "bnb": WeightFormat(method="bitsandbytes", size=_INT4),
    "autoround": WeightFormat(method="auto-round", size=_INT4),
    "w4a16": WeightFormat(method="compressed-tensors", size=_INT4),
    "w4a8": WeightFormat(method="compressed-tensors", size=_INT4),
    "w8a8": WeightFormat(method="compressed-tensors", size=_INT8),
    "w8a16": WeightFormat(method="compressed-tensors", size=_INT8),
    "int8": WeightFormat(method="compressed-tensors", size=_INT8),
    "int4": WeightFormat(method="compressed-tensors", size=_INT4),
    "4bit": WeightFormat(method="compressed-tensors", size=_INT4),
    "8bit": WeightFormat(method="compressed-tensors", size=_INT8),
    "mxfp4": MXFP4,  # before fp8, which names the activations in "w-mxfp4-a-fp8"
    "fp8": FP8,
    "nvfp4a16": WeightFormat(method="compressed-tensors", size=0.5625),
    "nvfp4": WeightFormat(method="modelopt_fp4", size=0.5625),  # a scale of 8 bit for each 16
    "fp4": WeightFormat(method="modelopt_fp4", size=0.5625),
    "gguf": WeightFormat(method="gguf", size=None),  # of many widths
    "exl2": WeightFormat(method="exl2", size=None),
    "bf16": NONE,
    "fp16": NONE,
}
"""By a word in the model's name, the most specific word first."""

_EIGHT_BITS = frozenset({"int8", "8bit"})


def format_from_name(words: frozenset[str]) -> WeightFormat | None:
    """The format that the words of a name state; None if they state no format."""
    if {"nvfp4", "fp8"} <= words:  # a part of the layers in each
        return WeightFormat(method="compressed-tensors", size=None)
    for word, weights in _WORDS.items():
        if word in words:
            if weights.size == _INT4 and words & _EIGHT_BITS:  # "GPTQ-Int8"
                return WeightFormat(method=weights.method, size=_INT8)
            return weights
    return None


def format_from_config(config: Mapping[str, Any], dtype: object) -> WeightFormat:
    """The format that a `config.json` states; its size is None if unknown.

    `config` is the `quantization_config` or `compression_config`; empty if the config has neither.
    """
    if not config:
        kind = str(dtype or "bfloat16").removeprefix("torch.")
        return NONE if kind in _HALVES else WeightFormat(method="", size=1.0 if "float8" in kind else None)
    method = str(config.get("quant_method") or "").lower().replace("_", "-") or _producer(config)
    method = {"modelopt-fp4": "modelopt_fp4"}.get(method, method)
    if method in ("fp8", "fbgemm-fp8"):
        return WeightFormat(method=method, size=1.0)
    if method == "mxfp4":
        return MXFP4
    if method == "modelopt_fp4":
        return _WORDS["nvfp4"]
    if method == "bitsandbytes":
        size = _INT4 if config.get("load_in_4bit") else 1.0 if config.get("load_in_8bit") else None
        return WeightFormat(method=method, size=size)
    if method == "compressed-tensors":
        return WeightFormat(method=method, size=_groups(config.get("config_groups")))
    bits = config.get("bits") or config.get("w_bit")
    return WeightFormat(
        method=method, size=_packed(bits, config.get("group_size") or config.get("q_group_size"))
    )


def stored_size(weights: WeightFormat, parameters: float, apart: float) -> float | None:
    """Mean bytes per parameter of the model, of which `apart` parameters stay in 16 bit."""
    if weights.size is None or parameters <= 0:
        return None
    if weights.size >= SIXTEEN_BIT:
        return weights.size
    unquantized = min(apart, parameters)
    return (weights.size * (parameters - unquantized) + SIXTEEN_BIT * unquantized) / parameters


def _groups(groups: object) -> float | None:
    """The common size of all groups of compressed-tensors; None if they differ."""
    if not isinstance(groups, Mapping):
        return None
    sizes = set()
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            return None
        sizes.add(_packed(weights.get("num_bits"), weights.get("group_size")))
    return sizes.pop() if len(sizes) == 1 else None


def _packed(bits: object, group: object) -> float | None:
    if not isinstance(bits, int) or isinstance(bits, bool) or not 0 < bits <= 16:  # noqa: PLR2004
        return None
    each = group if isinstance(group, int) and group > 0 else 0  # -1 and None: one scale per row
    return (bits + (20 / each if each else 0.0)) / 8


def _producer(config: Mapping[str, Any]) -> str:
    """The method in older ModelOpt files of NVIDIA, which lack `quant_method`."""
    inner = config.get("quantization")
    algorithm = str(
        inner.get("quant_algo") if isinstance(inner, Mapping) else config.get("quant_algo")
    ).upper()
    return {"FP8": "fp8", "NVFP4": "modelopt_fp4"}.get(algorithm, "")
