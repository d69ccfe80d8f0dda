"""What vLLM's argument parser says of its flags: which take a value, several, none; other names.

Those of 0.32, and those that 0.11 to 0.33 have had beside them: an old command line is read rightly too.
"""

ALIASES = {
    "device_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory": "kv_cache_memory_bytes",
}
"""Other names of a flag."""

SHORT = {
    "O": "optimization_level",
    "ac": "attention_config",
    "asc": "api_server_count",
    "cc": "compilation_config",
    "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size",
    "dp": "data_parallel_size",
    "dpa": "data_parallel_address",
    "dpb": "data_parallel_backend",
    "dpe": "data_parallel_external_lb",
    "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local",
    "dpm": "data_parallel_multi_port_external_lb",
    "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port",
    "dpr": "data_parallel_start_rank",
    "ep": "enable_expert_parallel",
    "n": "nnodes",
    "pcp": "prefill_context_parallel_size",
    "pp": "pipeline_parallel_size",
    "q": "quantization",
    "r": "node_rank",
    "sc": "speculative_config",
    "tp": "tensor_parallel_size",
}
"""The single-dash names."""

SWITCHES = frozenset(
    {
        "aggregate_engine_logging",
        "allow_credentials",
        "allow_deprecated_quantization",
        "async_scheduling",
        "calculate_kv_scales",
        "cohere_is_reasoning_model",
        "cudagraph_metrics",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
        "data_parallel_multi_port_external_lb",
        "dcp_q_replicate",
        "enforce_eager",
        "eplb_log_balancedness",
        "exclude_tools_when_tool_choice_none",
        "fail_on_environ_validation",
        "fully_sharded_loras",
        "grpc",
        "headless",
        "interleave_mm_strings",
        "jit_monitor_verbose",
        "kv_cache_metrics",
        "kv_sharing_fast_prefill",
        "language_model_only",
        "log_error_stack",
        "long_prefill_token_threshold_adaptive",
        "mm_device_do_normalize",
        "mm_encoder_only",
        "monokernel",
        "multi_step_stream_outputs",
        "numa_bind",
        "ray_workers_use_nsight",
        "return_sampling_mask",
        "return_tokens_as_token_ids",
        "scheduler_reserve_full_isl",
        "skip_mm_profiling",
        "skip_tokenizer_init",
        "sleep_mode_offload_cudagraph",
        "specialize_active_lora",
        "swa_bounded_replay",
        "tokens_only",
        "trust_remote_code",
        "trust_request_chat_template",
        "trust_request_mm_kwargs",
        "use_fp64_gumbel",
        "use_gpu_for_pooling_score",
        "use_replayssm",
        "use_tqdm_on_load",
        "use_v2_block_manager",
        "worker_use_ray",
    }
)
"""Flags without a value; those called enable_* and disable_* go without saying."""

NO_SWITCHES = frozenset(
    {
        "disable_access_log_for_endpoints",
    }
)
"""Called enable_* or disable_*, yet with a value."""

ONE_WAY = frozenset(
    {
        "aggregate_engine_logging",
        "data_parallel_multi_port_external_lb",
        "disable_log_stats",
        "enable_metrics",
        "grpc",
        "headless",
    }
)
"""Switches without a `--no-` form: off is to leave them out."""

SEVERAL = frozenset(
    {
        "allowed_media_domains",
        "collect_detailed_traces",
        "cpu_offload_params",
        "cuda_graph_sizes",
        "cudagraph_capture_sizes",
        "ignore_patterns",
        "kv_cache_dtype_skip_layers",
        "logits_processors",
        "lora_modules",
        "lora_target_modules",
        "numa_bind_cpus",
        "numa_bind_nodes",
        "offload_params",
        "served_model_name",
        "sleep_preserve_parameter_names",
    }
)
"""Flags that take one value or more."""

SIZES = frozenset(
    {
        "kv_cache_memory_bytes",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_queued_tokens",
        "max_num_scheduled_tokens",
        "safetensors_prefetch_block_size",
    }
)
"""Flags that understand 8k = 8000 and 8K = 8192."""

TEXTS = frozenset(
    {
        "model",
        "revision",
        "served_model_name",
        "tokenizer",
        "tokenizer_revision",
    }
)
"""Flags whose value stays text even when it looks like a number."""
