"""The relevant fields of published `config.json` files, by model name."""

from typing import Any

Config = dict[str, Any]


def llama(
    layers: int, hidden: int, inner: int, heads: int, kv: int, vocab: int = 128256, **more: object
) -> Config:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 131072,
    } | more


def qwen(kind: str, layers: int, hidden: int, inner: int, heads: int, kv: int, **more: object) -> Config:
    made = llama(layers, hidden, inner, heads, kv, vocab=151936)
    return made | {"model_type": kind, "max_position_embeddings": 40960} | more


def gemma(kind: str, layers: int, hidden: int, inner: int, heads: int, kv: int, **more: object) -> Config:
    made = llama(layers, hidden, inner, heads, kv, vocab=256000)
    return made | {"model_type": kind, "tie_word_embeddings": True} | more


DEEPSEEK_V3 = llama(61, 7168, 18432, 128, 128, vocab=129280) | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "rope_scaling": {"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096},
}
DEEPSEEK_V2_LITE = DEEPSEEK_V3 | {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "quantization_config": None,
}
MIXTRAL = llama(32, 4096, 14336, 32, 8, vocab=32000) | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
}
GPT_OSS = llama(24, 2880, 2880, 64, 8, vocab=201088) | {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}
QWEN3_MOE: Config = {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
MINIMAX_M2 = llama(62, 3072, 1536, 48, 8, vocab=200064) | {
    "model_type": "minimax_m2",
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 196608,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GLM_4_7 = llama(92, 5120, 12288, 96, 8, vocab=151552) | {
    "model_type": "glm4_moe",
    "head_dim": 128,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "max_position_embeddings": 202752,
}

COUNTED: dict[str, Config] = {
    "meta-llama/Llama-3.2-1B-Instruct": llama(16, 2048, 8192, 32, 8, tie_word_embeddings=True, head_dim=64),
    "meta-llama/Llama-3.2-3B-Instruct": llama(28, 3072, 8192, 24, 8, tie_word_embeddings=True),
    "meta-llama/Llama-3.1-8B-Instruct": llama(32, 4096, 14336, 32, 8),
    "meta-llama/Llama-3.3-70B-Instruct": llama(80, 8192, 28672, 64, 8),
    "meta-llama/Llama-3.1-405B-Instruct": llama(126, 16384, 53248, 128, 8),
    "meta-llama/Llama-2-7b-chat-hf": llama(
        32, 4096, 11008, 32, 32, 32000, torch_dtype="float16", max_position_embeddings=4096
    ),
    "meta-llama/Llama-2-13b-hf": llama(
        40, 5120, 13824, 40, 40, 32000, torch_dtype="float16", max_position_embeddings=4096
    ),
    "meta-llama/Llama-2-70b-hf": llama(
        80, 8192, 28672, 64, 8, 32000, torch_dtype="float16", max_position_embeddings=4096
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": llama(22, 2048, 5632, 32, 4, 32000, max_position_embeddings=2048),
    "mistralai/Mistral-7B-Instruct-v0.3": llama(
        32, 4096, 14336, 32, 8, 32768, model_type="mistral", max_position_embeddings=32768
    ),
    "mistralai/Mistral-Small-24B-Instruct-2501": llama(
        40, 5120, 32768, 32, 8, 131072, model_type="mistral", head_dim=128, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": qwen(
        "qwen2", 24, 896, 4864, 14, 2, tie_word_embeddings=True, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": qwen(
        "qwen2", 28, 1536, 8960, 12, 2, tie_word_embeddings=True, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-3B-Instruct": qwen(
        "qwen2", 36, 2048, 11008, 16, 2, tie_word_embeddings=True, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-7B-Instruct": qwen(
        "qwen2", 28, 3584, 18944, 28, 4, vocab_size=152064, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-7B": qwen(
        "qwen2", 28, 3584, 18944, 28, 4, vocab_size=152064, max_position_embeddings=131072
    ),
    "Qwen/Qwen2.5-14B-Instruct": qwen(
        "qwen2", 48, 5120, 13824, 40, 8, vocab_size=152064, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-32B-Instruct": qwen(
        "qwen2", 64, 5120, 27648, 40, 8, vocab_size=152064, max_position_embeddings=32768
    ),
    "Qwen/Qwen2.5-72B-Instruct": qwen(
        "qwen2", 80, 8192, 29568, 64, 8, vocab_size=152064, max_position_embeddings=32768
    ),
    "Qwen/Qwen3-0.6B": qwen("qwen3", 28, 1024, 3072, 16, 8, head_dim=128, tie_word_embeddings=True),
    "Qwen/Qwen3-1.7B": qwen("qwen3", 28, 2048, 6144, 16, 8, head_dim=128, tie_word_embeddings=True),
    "Qwen/Qwen3-4B": qwen("qwen3", 36, 2560, 9728, 32, 8, head_dim=128, tie_word_embeddings=True),
    "Qwen/Qwen3-8B": qwen("qwen3", 36, 4096, 12288, 32, 8, head_dim=128),
    "Qwen/Qwen3-14B": qwen("qwen3", 40, 5120, 17408, 40, 8, head_dim=128),
    "Qwen/Qwen3-32B": qwen("qwen3", 64, 5120, 25600, 64, 8, head_dim=128),
    "Qwen/Qwen3-30B-A3B": qwen("qwen3_moe", 48, 2048, 6144, 32, 4, moe_intermediate_size=768, **QWEN3_MOE),
    "Qwen/Qwen3-235B-A22B": qwen(
        "qwen3_moe", 94, 4096, 12288, 64, 4, moe_intermediate_size=1536, **QWEN3_MOE
    ),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": qwen(
        "qwen3_moe", 62, 6144, 8192, 96, 8, moe_intermediate_size=2560, **QWEN3_MOE
    )
    | {"num_experts": 160, "max_position_embeddings": 262144},
    "google/gemma-2-9b-it": gemma(
        "gemma2", 42, 3584, 14336, 16, 8, head_dim=256, max_position_embeddings=8192
    ),
    "google/gemma-2-27b-it": gemma(
        "gemma2", 46, 4608, 36864, 32, 16, head_dim=128, max_position_embeddings=8192
    ),
    "microsoft/phi-4": llama(
        40, 5120, 17920, 40, 10, 100352, model_type="phi3", max_position_embeddings=16384
    ),
    "microsoft/Phi-4-mini-instruct": llama(
        32, 3072, 8192, 24, 8, 200064, model_type="phi3", tie_word_embeddings=True
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": MIXTRAL,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": MIXTRAL
    | {
        "num_hidden_layers": 56,
        "hidden_size": 6144,
        "intermediate_size": 16384,
        "num_attention_heads": 48,
        "vocab_size": 32768,
        "max_position_embeddings": 65536,
    },
    "deepseek-ai/DeepSeek-V3": DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-R1-0528": DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-V2-Lite-Chat": DEEPSEEK_V2_LITE,
    "moonshotai/Kimi-K2-Instruct": KIMI_K2,
    "openai/gpt-oss-20b": GPT_OSS,
    "openai/gpt-oss-120b": GPT_OSS
    | {
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
    "MiniMaxAI/MiniMax-M2": MINIMAX_M2,
    "zai-org/GLM-4.7": GLM_4_7,
    "zai-org/GLM-4.5-Air": GLM_4_7
    | {
        "num_hidden_layers": 46,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
    },
}
"""Those whose parameters can be counted from the shapes."""
