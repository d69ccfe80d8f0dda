"""The width of one routed expert (`moe_intermediate_size`) of the well-known models."""

EXPERT_WIDTHS = {
    "deepseek-coder-v2-lite": 1408,
    "deepseek-r1": 2048,
    "deepseek-v2-lite": 1408,
    "deepseek-v3": 2048,
    "deepseek-v3.1": 2048,
    "deepseek-v3.2": 2048,
    "glm-4.5": 1536,
    "glm-4.5-air": 1408,
    "glm-4.6": 1536,
    "glm-4.7": 1536,
    "kimi-k2": 2048,
    "kimi-k2-thinking": 2048,
    "kimi-k2.5": 2048,
    "minimax-m2": 1536,
    "mixtral-8x22b": 16384,
    "mixtral-8x7b": 14336,
    "qwen3-235b-a22b": 1536,
    "qwen3-30b-a3b": 768,
    "qwen3-coder-30b-a3b": 768,
    "qwen3-coder-480b-a35b": 2560,
    "qwen3-next-80b-a3b": 512,
    "qwen3.5-35b-a3b": 512,
    "qwen3.5-397b-a17b": 1024,
    "qwen3.6-35b-a3b": 512,
}
"""By the key of the model's row in table.py."""
