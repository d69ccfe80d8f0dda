"""What the argument parser of vLLM 0.32.0 knows: all its flags by their canonical names."""

GROUPS = {
    group: frozenset(names.split())
    for group, names in {
        "SchedulerConfig": """
        async_scheduling disable_chunked_mm_input disable_hybrid_kv_cache_manager enable_chunked_prefill
        long_prefill_token_threshold long_prefill_token_threshold_adaptive max_num_active_seqs
        max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens
        max_num_seqs prefill_schedule_interval scheduler_cls scheduler_reserve_full_isl
        scheduling_policy stream_interval watermark
        """,
        "CacheConfig": """
        block_size device_memory_utilization enable_mamba_shared_prefix_checkpoint enable_prefix_caching
        gpu_memory_utilization kv_cache_dtype kv_cache_dtype_skip_layers kv_cache_memory_bytes
        kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill mamba_block_size
        mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype num_gpu_blocks_override
        prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit replayssm_buffer_len
        swa_bounded_replay use_replayssm
        """,
        "OffloadConfig": """
        cpu_offload_gb cpu_offload_params offload_backend offload_group_size offload_num_in_group
        offload_params offload_prefetch_step
        """,
        "CompilationConfig": """
        cudagraph_capture_sizes max_cudagraph_capture_size
        """,
        "KernelConfig": """
        enable_flashinfer_autotune ir_op_priority linear_backend moe_backend sparse_indexer_topk_backend
        """,
        "ParallelConfig": """
        all2all_backend cp_kv_cache_interleave_size cpu_distributed_timeout_seconds
        data_parallel_address data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb
        data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port
        data_parallel_size data_parallel_size_local data_parallel_start_rank dbo_decode_token_threshold
        dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate
        decode_context_parallel_size device_ids disable_custom_all_reduce
        disable_nccl_for_dp_synchronization distributed_executor_backend distributed_timeout_seconds
        dp_sync_interval elastic_ep_max_dp_size enable_batch_sharded_sampling enable_dbo
        enable_elastic_ep enable_ep_weight_filter enable_eplb enable_expert_parallel
        enable_fault_tolerance enable_hc_sp enable_shm_tensor_arena eplb_config
        expert_placement_strategy fault_tolerance_config master_addr master_port
        max_parallel_loading_workers nnodes node_rank numa_bind numa_bind_cpus numa_bind_nodes
        pipeline_parallel_size prefill_context_parallel_size ray_workers_use_nsight tensor_parallel_size
        ubatch_size worker_cls worker_extension_cls
        """,
        "LoRAConfig": """
        default_mm_loras enable_lora enable_mixed_moe_lora_format enable_moe_shared_loras
        enable_tower_connector_lora fully_sharded_loras lora_dtype lora_target_modules max_cpu_loras
        max_lora_cls_labels max_lora_rank max_loras specialize_active_lora
        """,
        "MultiModalConfig": """
        enable_mm_embeds interleave_mm_strings language_model_only limit_mm_per_prompt media_io_kwargs
        mm_device_do_normalize mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path
        mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_only
        mm_encoder_tp_mode mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb
        mm_processor_cache_type mm_processor_device mm_processor_kwargs mm_shm_cache_max_object_size_mb
        mm_tensor_ipc skip_mm_profiling video_pruning_method video_pruning_rate
        """,
        "MambaConfig": """
        enable_mamba_cache_stochastic_rounding mamba_backend mamba_cache_philox_rounds
        mamba_ssu_algorithm
        """,
    }.items()
}
"""Those that decide about speed and room, as vLLM groups them."""

OTHERS = frozenset(
    """
    additional_config aggregate_engine_logging allow_credentials allow_deprecated_quantization
    allowed_headers allowed_local_media_path allowed_media_domains allowed_methods allowed_origins
    anthropic_disabled_thinking_effort api_key api_server_count attention_backend attention_config
    aux_output_config chat_template chat_template_content_format code_revision cohere_format
    cohere_is_reasoning_model collect_detailed_traces compilation_config config config_format convert
    cudagraph_metrics custom_histogram_buckets data_parallel_supervisor_port default_chat_template_kwargs
    diffusion_config disable_access_log_for_endpoints disable_cascade_attn disable_fastapi_docs
    disable_log_stats disable_sliding_window disable_uvicorn_access_log download_dir
    dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
    dtype ec_manager_config ec_transfer_config enable_auto_tool_choice enable_cumem_allocator
    enable_flash_late_interaction enable_force_include_usage enable_layerwise_nvtx_tracing
    enable_log_deltas enable_log_outputs enable_log_requests enable_logging_iteration_details
    enable_mfu_metrics enable_nccl_comm_suspend enable_offline_docs enable_per_request_metrics
    enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers
    enable_return_routed_experts enable_scale_out enable_server_load_tracking enable_sleep_mode
    enable_ssl_refresh enable_tokenizer_info_endpoint enable_trace_replay enforce_eager engram_config
    exclude_tools_when_tool_choice_none fail_on_environ_validation fingerprint_mode fingerprint_value
    gdn_prefill_backend generation_config grpc grpc_port h11_max_header_count
    h11_max_incomplete_event_size headless hf_config_path hf_overrides hf_token host ignore_patterns
    io_processor_plugin jit_monitor_mode jit_monitor_verbose kda_decode_backend kda_prefill_backend
    kernel_config kv_cache_metrics kv_cache_metrics_sample kv_events_config kv_transfer_config load_format
    log_config_file log_error_stack log_level logging_config logits_processors logprobs_mode lora_modules
    max_log_len max_logprobs max_model_len middleware model model_class_overrides model_impl
    model_loader_extra_config optimization_level otlp_traces_endpoint override_generation_config
    per_request_spec_decode_metrics performance_mode pooler_config port profiler_config
    pt_load_map_location quantization quantization_config reasoning_config reasoning_parser
    reasoning_parser_plugin renderer_num_workers response_role return_sampling_mask
    return_tokens_as_token_ids revision root_path runner safetensors_load_strategy
    safetensors_prefetch_block_size safetensors_prefetch_num_threads seed served_model_name
    show_hidden_metrics_for_version shutdown_timeout skip_tokenizer_init sleep_mode_offload_cudagraph
    sleep_preserve_parameter_names spec_method spec_model spec_tokens speculative_config
    sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile
    structured_outputs_config tokenizer tokenizer_mode tokenizer_revision tokens_only tool_call_parser
    tool_parser_plugin tool_server tool_strict_level trust_remote_code trust_request_chat_template
    trust_request_mm_kwargs uds use_fp64_gumbel use_tqdm_on_load uvicorn_log_level watermark_config
    weight_transfer_config
    """.split()  # noqa: SIM905 - one a line would be a page
)

FLAGS = OTHERS.union(*GROUPS.values())

RELEASE = (0, 32)
"""Whose flags these are."""
