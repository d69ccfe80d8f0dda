"""The recurrent state of a hybrid model: what one sequence holds in one layer (Mamba-2, gated delta net).

The shapes are those of vllm/model_executor/layers/mamba/mamba_utils.py: the last tokens of a convolution in
16 bit, and a temporal state, which some models keep in 32 bit.
"""

from collections.abc import Mapping
from typing import Any

_HALF, _FULL = 2.0, 4.0  # bytes
_DELTA_NET = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
)
_MAMBA = (
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),  # Nemotron-H
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),  # Granite 4, Bamba
)
_VALUE_HEADS = {
    ("qwen3_next", 2048): 32,
    ("qwen3_5", 1024): 16,
    ("qwen3_5", 2048): 16,
    ("qwen3_5", 2560): 32,
    ("qwen3_5", 4096): 32,
    ("qwen3_5", 5120): 48,
    ("qwen3_5_moe", 2048): 32,
    ("qwen3_5_moe", 3072): 64,
    ("qwen3_5_moe", 4096): 64,
}
"""Of the delta nets of known models, by type and hidden size; 16 key heads of 128, a convolution of 4."""


def count_state_bytes(text: Mapping[str, Any]) -> float | None:
    """From a `config.json`; None for another kind of layer, or if a number is missing."""
    stated = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    kind = str(stated or ("float32" if text.get("model_type") == "nemotron_h" else ""))
    width = _FULL if kind == "float32" else _HALF
    if sizes := _integers(text, _DELTA_NET):
        keys, key_width, values, value_width = sizes
        kernel = _integers(text, ("linear_conv_kernel_dim",)) or [4]
        return _delta_net(keys * key_width, values * value_width, key_width, kernel[0], width)
    for names in _MAMBA:
        if sizes := _integers(text, names):
            heads, head, state, groups, kernel_size = sizes
            inner = heads * head
            return (inner + 2 * groups * state) * (kernel_size - 1) * _HALF + inner * state * width
    return None


def _integers(text: Mapping[str, Any], keys: tuple[str, ...]) -> list[int]:
    """The numbers under all of `keys`; empty if one is missing."""
    values = [text.get(key) for key in keys]
    numbers = [
        value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0
    ]
    return numbers if len(numbers) == len(keys) else []


def find_state_bytes(model_type: str, hidden: int | None) -> float | None:
    """Of a known model, by its type and hidden size."""
    heads = _VALUE_HEADS.get((model_type, hidden or 0))
    width = _HALF if model_type == "qwen3_next" else _FULL
    return None if heads is None else _delta_net(16 * 128, heads * 128, 128, 4, width)


def _delta_net(keys: int, values: int, key_width: int, kernel: int, width: float) -> float:
    return (2 * keys + values) * (kernel - 1) * _HALF + values * key_width * width
