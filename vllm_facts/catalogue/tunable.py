"""The flags whose value trimtab may change: numbers, switches and choices that decide about speed and room.

Not here, and so never changed unless the operator's config names the values: what decides which model is
served or how it answers, code and files that are loaded, addresses, secrets, what is logged of requests, what
the judge reads, how many hosts take part, and all text and JSON.
"""

TUNABLE = frozenset(
    """
    async_scheduling disable_chunked_mm_input disable_hybrid_kv_cache_manager enable_chunked_prefill
    long_prefill_token_threshold long_prefill_token_threshold_adaptive max_num_active_seqs
    max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens max_num_seqs
    performance_mode prefill_schedule_interval scheduler_reserve_full_isl scheduling_policy stream_interval
    watermark

    block_size enable_prefix_caching gpu_memory_utilization kv_cache_dtype kv_cache_memory_bytes
    kv_offloading_size kv_sharing_fast_prefill max_model_len prefix_cache_retention_interval prefix_match_unit
    swa_bounded_replay

    cpu_offload_gb offload_backend offload_group_size offload_num_in_group offload_prefetch_step

    cudagraph_capture_sizes enable_flashinfer_autotune enforce_eager linear_backend
    max_cudagraph_capture_size moe_backend monokernel optimization_level sparse_indexer_topk_backend
    use_fp64_gumbel

    all2all_backend cp_kv_cache_interleave_size data_parallel_size dbo_decode_token_threshold
    dbo_prefill_token_threshold dcp_comm_backend dcp_q_replicate decode_context_parallel_size
    disable_custom_all_reduce disable_nccl_for_dp_synchronization dp_sync_interval
    enable_batch_sharded_sampling enable_dbo enable_ep_weight_filter enable_eplb enable_expert_parallel
    enable_shm_tensor_arena expert_placement_strategy max_parallel_loading_workers numa_bind
    pipeline_parallel_size prefill_context_parallel_size tensor_parallel_size ubatch_size

    fully_sharded_loras max_cpu_loras max_lora_rank max_loras specialize_active_lora spec_tokens

    enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint gdn_prefill_backend
    kda_decode_backend kda_prefill_backend mamba_block_size mamba_cache_dtype mamba_cache_mode
    mamba_ssm_cache_dtype mamba_ssu_algorithm replayssm_buffer_len use_replayssm

    mm_device_do_normalize mm_encoder_attn_dtype mm_encoder_tp_mode mm_hasher_algorithm
    mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type mm_processor_device
    mm_shm_cache_max_object_size_mb mm_tensor_ipc skip_mm_profiling

    api_server_count cudagraph_metrics disable_uvicorn_access_log enable_mfu_metrics kv_cache_metrics
    kv_cache_metrics_sample renderer_num_workers safetensors_prefetch_block_size
    safetensors_prefetch_num_threads
    """.split()  # noqa: SIM905 - one a line would be a page
)
