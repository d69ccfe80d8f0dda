"""The routes that vLLM has only with VLLM_SERVER_DEV_MODE=1: no client may call them.

From vllm/entrypoints/serve/dev and vllm/entrypoints/rl/online/api_router.py. Its API key does not
protect them: it guards /v1 alone.
"""

DEV_MODE = "VLLM_SERVER_DEV_MODE"

DEV_ROUTES = (
    "abort_requests",
    "collective_rpc",
    "finish_weight_update",
    "get_world_size",
    "init_weight_transfer_engine",
    "is_paused",
    "is_sleeping",
    "pause",
    "release_kv_cache_memory",
    "reset_encoder_cache",
    "reset_mm_cache",
    "reset_prefix_cache",
    "resume",
    "server_info",
    "shutdown_weight_transfer_engine",
    "sleep",
    "start_draft_weight_update",
    "start_weight_update",
    "update_weight_version",
    "update_weights",
    "wake_up",
    "weight_checker",
    "weight_info",
)
