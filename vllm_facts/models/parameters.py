"""The number of parameters of a model, counted from the shapes in its `config.json` for known families.

Biases, norms and the image part are left out: together below 2 % of a language model.
"""

from collections.abc import Mapping
from typing import Any

_GATED = frozenset(
    {"llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3"}
    | {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "granite", "olmo2"}
    | {"gemma", "gemma2", "gemma3", "gemma3_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"}
    | {"glm4_moe", "gpt_oss", "minimax_m2"}
)
"""model_types whose every layer is attention and a gated MLP, or experts of that form."""

_TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})


def count_parameters(text: Mapping[str, Any]) -> float | None:
    """Count the parameters of the language model; None for an unknown family or layer pattern."""
    layer = _layer_sizes(text)
    if layer is None:
        return None
    attention, dense, expert, shared = layer
    layers, sparse = text["num_hidden_layers"], _count_moe_layers(text)
    if sparse is None:
        return None
    routed = _positive_int(text, "num_experts", "n_routed_experts", "num_local_experts") or 0
    experts = sparse * (routed * expert + shared + routed * text["hidden_size"])
    return float(unquantized_parameters(text) + layers * attention + (layers - sparse) * dense + experts)


def count_active_parameters(text: Mapping[str, Any], count: float | None) -> float | None:
    """Count the parameters active for a token: all except the experts that the router does not select."""
    layer, sparse = _layer_sizes(text), _count_moe_layers(text)
    if count is None or layer is None or sparse is None:
        return None
    routed = _positive_int(text, "num_experts", "n_routed_experts", "num_local_experts") or 0
    top = _positive_int(text, "num_experts_per_tok") or 0
    return count - sparse * max(routed - top, 0) * layer[2]


def unquantized_parameters(text: Mapping[str, Any]) -> float:
    """Parameters of embedding and output; 0 if the config lacks the sizes."""
    return (vocabulary_parameters(text) or 0.0) * (1 if is_tied(text) else 2)


def vocabulary_parameters(text: Mapping[str, Any]) -> float | None:
    """Parameters of the embedding; None if the config lacks the sizes."""
    vocab, hidden = _positive_int(text, "vocab_size"), _positive_int(text, "hidden_size")
    return float(vocab * hidden) if vocab and hidden else None


def is_tied(text: Mapping[str, Any]) -> bool:
    """Whether embedding and output are one matrix."""
    return bool(text.get("tie_word_embeddings", str(text.get("model_type")) in _TIED_BY_DEFAULT))


def _layer_sizes(text: Mapping[str, Any]) -> tuple[int, int, int, int] | None:
    """Parameters of attention, of a dense MLP, of one expert, of the shared experts of a layer."""
    hidden, heads = _positive_int(text, "hidden_size"), _positive_int(text, "num_attention_heads")
    inner = _positive_int(text, "intermediate_size")
    if str(text.get("model_type")) not in _GATED or not (hidden and heads and inner):
        return None
    if not _positive_int(text, "num_hidden_layers") or not _positive_int(text, "vocab_size"):
        return None
    wide = _positive_int(text, "moe_intermediate_size") or inner
    shared = (_positive_int(text, "n_shared_experts") or 0) * wide
    shared += _positive_int(text, "shared_expert_intermediate_size") or 0
    attention = _mla_parameters(text, hidden, heads) or _attention_parameters(text, hidden, heads)
    return attention, 3 * hidden * inner, 3 * hidden * wide, 3 * hidden * shared


def _attention_parameters(text: Mapping[str, Any], hidden: int, heads: int) -> int:
    dim = _positive_int(text, "head_dim") or hidden // heads
    kv = _positive_int(text, "num_key_value_heads") or heads
    return 2 * hidden * dim * (heads + kv)


def _mla_parameters(text: Mapping[str, Any], hidden: int, heads: int) -> int | None:
    """Multi-head latent attention, as in DeepSeek-V2; None for other kinds."""
    rank, rope = _positive_int(text, "kv_lora_rank"), _positive_int(text, "qk_rope_head_dim")
    flat, value = _positive_int(text, "qk_nope_head_dim"), _positive_int(text, "v_head_dim")
    if not (rank and rope and flat and value):
        return None
    low = _positive_int(text, "q_lora_rank")
    query = low * (hidden + heads * (flat + rope)) if low else hidden * heads * (flat + rope)
    return query + hidden * (rank + rope) + rank * heads * (flat + value) + heads * value * hidden


def _count_moe_layers(text: Mapping[str, Any]) -> int | None:
    """Layers with experts; None for a pattern that is not supported here."""
    layers = _positive_int(text, "num_hidden_layers") or 0
    if not _positive_int(text, "num_experts", "n_routed_experts", "num_local_experts"):
        return 0
    if text.get("mlp_only_layers") or (_positive_int(text, "decoder_sparse_step") or 1) != 1:
        return None
    return layers - (_positive_int(text, "first_k_dense_replace") or 0)


def _positive_int(text: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
