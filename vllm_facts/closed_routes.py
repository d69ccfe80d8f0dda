"""The routes of vLLM that change a server for all its clients: closed to clients unless the config opens one.

vLLM's API key protects few of them: it guards /v1 alone. A name is the end of a path, because a server may
have a root path; its last segment `*` stands for any.
"""

DEV_MODE = "VLLM_SERVER_DEV_MODE"

# Only with VLLM_SERVER_DEV_MODE=1: vllm/entrypoints/serve/dev and vllm/entrypoints/rl/online/api_router.py.
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

# Without development mode: vllm/entrypoints/serve/{profile,lora,elastic_ep,fault_tolerance}/api_router.py.
# `adapters`: SageMaker's names of LoRA's, model_hosting_container_standards/sagemaker/lora/routes.py.
OPERATOR_ROUTES = (
    "adapters",
    "adapters/*",
    "fault_tolerance/apply",
    "fault_tolerance/status",
    "is_scaling_elastic_ep",
    "scale_elastic_ep",
    "start_profile",
    "stop_profile",
    "v1/load_lora_adapter",
    "v1/unload_lora_adapter",
)

# In no release up to 0.32: names under which servers with changes of their own can be reconfigured.
RECONFIGURING_ROUTES = ("reinit", "runtime_config", "set_knobs")

CLOSED_ROUTES = (*DEV_ROUTES, *OPERATOR_ROUTES, *RECONFIGURING_ROUTES)


def check_open_routes(names: tuple[str, ...]) -> None:
    """Raises ValueError for a name that no closed route has, so that it would open none."""
    if unknown := [name for name in names if name not in CLOSED_ROUTES]:
        closed = ", ".join(CLOSED_ROUTES)
        raise ValueError(
            f"open_routes: no closed route is named {unknown[0]!r}; the closed ones are {closed}"
        )
