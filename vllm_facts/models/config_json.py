"""A model's `config.json` in numbers: the keys of all families under one name each.

The keys are those that vLLM reads (vllm/transformers_utils/model_arch_config_convertor.py). Missing
and unreadable entries are None.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flettner.vllm_facts.models.parameters import (
    count_active_parameters,
    count_parameters,
    is_tied,
    unquantized_parameters,
    vocabulary_parameters,
)
from flettner.vllm_facts.models.recurrent_state import count_state_bytes
from flettner.vllm_facts.serve_config import Model
from flettner.vllm_facts.weight_formats import MXFP4, format_from_config, stored_size

_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_WIDTHS = ("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
_EXPERT_WIDTHS = ("moe_intermediate_size", "expert_intermediate_size", "expert_dim")
_TOP = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")

_ORIGINAL = "original_max_position_embeddings"
_FACTOR_APART = frozenset(
    {"linear", "dynamic"}
)  # vLLM multiplies by the factor; for other types the length is scaled already

_NO_MLA = frozenset({"minicpm3"})  # has a latent in its weights, but caches heads
_ATTENTION = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid"}
    | {"deepseek_sparse_attention"}
)


def read_config(
    config: Mapping[str, Any], name: str, *, count: float | None = None, active: float | None = None
) -> Model:
    """The model that a `config.json` describes.

    `count`, `active`: the known numbers of parameters; else they are counted if the family is known.
    """
    text = _language_model_entries(config)
    latent = None if _model_type(text) in _NO_MLA else _int_entry(text, "kv_lora_rank")
    hybrid, attention = _attention_layers(text)
    experts = _int_entry(text, *_EXPERTS) or None
    quantization, dtype = _quantization(config, text), _first_entry(text, config, "torch_dtype", "dtype")
    weights = format_from_config(quantization, dtype)
    if config.get("expert_dtype") == "fp4":  # DeepSeek V4: all but a few percent are experts
        weights = replace(weights, size=MXFP4.size)
    count = count or count_parameters(text)
    heads = _int_entry(text, *_HEADS)
    return Model(
        name=name,
        parameters=count,
        active_parameters=active or count_active_parameters(text, count),
        layers=_layers(text),
        hidden_size=_int_entry(text, "hidden_size", "n_embd", "d_model"),
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=_head_dim(text, heads),
        experts=experts,
        active_experts=_int_entry(text, *_TOP) if experts else None,
        mla=latent is not None or _has_compressed_cache(text),
        latent_dim=_latent_dim(text, latent),
        hybrid=hybrid,
        attention_layers=attention,
        state_bytes=count_state_bytes(text) if hybrid else None,
        max_len=_max_len(text),
        weight_bytes=weights.size
        if count is None
        else stored_size(weights, count, unquantized_parameters(text)),
        quantization=weights.method,
        architecture=_architecture(config),
        model_type=_model_type(config),
        vocab=_int_entry(text, "vocab_size", "padded_vocab_size"),
        vocabulary_parameters=vocabulary_parameters(text),
        tied=is_tied(text),
        intermediate=_int_entry(text, *_WIDTHS),
        moe_intermediate=_expert_width(text) if experts else None,
        shared_intermediate=_shared_width(text) if experts else None,
        weight_block=_weight_block(quantization),
        dtype=str(dtype or "").removeprefix("torch."),
    )


def _language_model_entries(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of the language model, which multimodal configs nest."""
    for key in _TEXT:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return _language_model_entries(inner)
    return config


def _int_entry(config: Mapping[str, Any], *keys: str) -> int | None:
    """The integer under the first existing key; None if it is no number (a list differs by layer)."""
    for key in keys:
        value = config.get(key)
        if value is not None:
            return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
    return None


def _model_type(text: Mapping[str, Any]) -> str:
    return str(text.get("model_type", ""))


def _first_entry(text: Mapping[str, Any], config: Mapping[str, Any], *keys: str) -> object:
    return next((part[key] for part in (text, config) for key in keys if part.get(key)), None)


def _layers(text: Mapping[str, Any]) -> int | None:
    kinds = text.get("layers_block_type")
    layers = _int_entry(text, *_LAYERS)
    return len(kinds) if layers is None and isinstance(kinds, (list, tuple)) else layers


def _has_compressed_cache(text: Mapping[str, Any]) -> bool:
    """True for DeepSeek V4: a single latent for all heads, compressed over tokens too."""
    return "compress_ratios" in text


def _kv_heads(text: Mapping[str, Any], heads: int | None) -> int | None:
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):  # Falcon, StarCoder
        return 1
    if any(text.get(key) is not None for key in _KV_HEADS):
        return _int_entry(text, *_KV_HEADS)
    return heads


def _head_dim(text: Mapping[str, Any], heads: int | None) -> int | None:
    dim = _int_entry(text, "head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels")
    hidden = _int_entry(text, "hidden_size", "n_embd", "d_model")
    if dim or text.get("head_dim") is not None:
        return dim or None
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _expert_width(text: Mapping[str, Any]) -> int | None:
    """The width of a routed expert; without an own key in the config, intermediate_size."""
    if any(text.get(key) is not None for key in _EXPERT_WIDTHS):
        return _int_entry(text, *_EXPERT_WIDTHS)
    return _int_entry(text, "intermediate_size", "ffn_hidden_size")


def _shared_width(text: Mapping[str, Any]) -> int | None:
    """The width of a layer's shared experts, which vLLM computes as one; None if it has none."""
    if (width := _int_entry(text, "shared_expert_intermediate_size")) is not None:
        return width
    count, each = _int_entry(text, "n_shared_experts"), _expert_width(text)
    return count * each if count and each else None


def _weight_block(quantization: Mapping[str, Any]) -> tuple[int, int] | None:
    """`weight_block_size` of FP8 weights; None for other formats."""
    size = quantization.get("weight_block_size")
    if not isinstance(size, (list, tuple)) or len(size) != 2:  # noqa: PLR2004 - rows and columns
        return None
    rows, columns = size
    valid = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size)
    return (rows, columns) if valid else None


def _latent_dim(text: Mapping[str, Any], rank: int | None) -> int | None:
    rope = _int_entry(text, "qk_rope_head_dim")
    if rank is None or rope is None or _has_compressed_cache(text):
        return None
    return rank + rope


def _max_len(text: Mapping[str, Any]) -> int | None:
    """The context length of the model, multiplied by the RoPE factor if the config's number excludes it."""
    length = min((length for key in _LENGTHS if (length := _int_entry(text, key))), default=None)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = scaling.get("factor") if isinstance(scaling, Mapping) else None
    if not isinstance(scaling, Mapping) or not isinstance(factor, (int, float)) or isinstance(factor, bool):
        return length
    kind, original = scaling.get("rope_type", scaling.get("type")), scaling.get(_ORIGINAL)
    if kind == "yarn" and isinstance(original, int):
        return round(original * factor)
    return (
        round(length * factor)
        if length and kind in _FACTOR_APART and not _model_type(text).startswith("gemma3")
        else length
    )


def _attention_layers(text: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether some layers have a recurrent state instead of a KV cache, and how many have a KV cache."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):  # "M-M*-": Mamba, MLP, attention
        return "M" in pattern, pattern.count("*") if "M" in pattern else None
    for key in ("layer_types", "layers_block_type"):
        kinds = text.get(key)
        if isinstance(kinds, (list, tuple)) and kinds and all(isinstance(kind, str) for kind in kinds):
            with_cache = sum(kind in _ATTENTION for kind in kinds)
            recurrent = any(kind not in _ATTENTION | {"moe", "mlp"} for kind in kinds) or "hybrid" in kinds
            return recurrent, with_cache if recurrent else None
    return _periodic_attention(text)


def _periodic_attention(text: Mapping[str, Any]) -> tuple[bool, int | None]:
    layers = _int_entry(text, *_LAYERS)
    period, offset = _int_entry(text, "attn_layer_period"), _int_entry(text, "attn_layer_offset") or 0
    if period and layers:  # Jamba
        return True, sum(layer % period == offset for layer in range(layers))
    interval = _int_entry(text, "full_attention_interval")
    if interval and layers:  # Qwen3-Next
        return True, layers // interval
    indices = text.get("attn_layer_indices")
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping):  # Kimi-Linear
        indices = linear.get("full_attn_layers")
    if isinstance(indices, (list, tuple)):
        return True, len(indices)
    if _model_type(text) in ("mamba", "mamba2", "falcon_mamba"):
        return True, 0
    if any(key.startswith(("mamba_", "ssm_")) for key in text):
        return True, None
    return False, None


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    for part in (config, text):
        for key in ("quantization_config", "compression_config"):
            entry = part.get(key)
            if isinstance(entry, Mapping):
                return entry
    return {}


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, (list, tuple)) and names else ""
