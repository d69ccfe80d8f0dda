"""The keys of the flags that take JSON, as the dataclasses of vLLM 0.32.0 (vllm/config) have them."""

_KEYS = {
    "attention_config": """
    backend backend_per_kind disable_flashinfer_q_quantization flash_attn_max_num_splits_for_cuda_graph
    flash_attn_version flex_attn_block_m flex_attn_block_n flex_attn_kv_block_size flex_attn_q_block_size
    hisparse_config indexer_kv_dtype indexer_sparse_logits minimax_m3_msa_decode_backend
    mla_prefill_backend sparse_mla_force_mqa sparse_mla_prefill_workspace_factor
    tokenspeed_mla_min_split_kv tq_max_kv_splits_for_cuda_graph use_non_causal
    use_prefill_query_quantization use_trtllm_attention
    """,
    "compilation_config": """
    backend cache_dir compile_cache_save_format compile_mm_encoder compile_ranges_endpoints compile_sizes
    cudagraph_capture_sizes cudagraph_copy_inputs cudagraph_decoder_replay cudagraph_mm_encoder
    cudagraph_mode cudagraph_num_of_warmups cudagraph_specialize_lora custom_ops debug_dump_path
    decoder_replay_cudagraph_capture_sizes decoder_replay_trim_threshold dynamic_shapes_config
    encoder_cudagraph_max_frames_per_batch encoder_cudagraph_max_vision_items_per_batch
    encoder_cudagraph_token_budgets fast_moe_cold_start inductor_compile_config inductor_passes
    ir_enable_torch_wrap local_cache_dir max_cudagraph_capture_size mode pass_config splitting_ops
    use_inductor_graph_partition
    """,
    "eplb_config": """
    communicator enable_migration_batching log_balancedness log_balancedness_interval
    num_redundant_experts policy step_interval use_async window_size
    """,
    "kernel_config": """
    enable_cutedsl_warmup enable_flashinfer_autotune enable_jit_warmup enable_rocm_segmented_attn_autotune
    ir_op_priority linear_backend linear_backend_per_quant moe_backend sparse_indexer_topk_backend
    """,
    "kv_events_config": """
    buffer_steps enable_kv_cache_events endpoint hwm max_queue_size publisher replay_endpoint topic
    """,
    "kv_transfer_config": """
    enable_permute_local_kv engine_id kv_buffer_device kv_connector kv_connector_extra_config
    kv_connector_module_path kv_load_failure_policy kv_port kv_role
    """,
    "pooler_config": """
    dimensions enable_chunked_processing enable_flash_late_interaction logit_mean logit_sigma max_embed_len
    pooling_type returned_token_ids seq_pooling_type step_tag_id task tok_pooling_type use_activation
    """,
    "speculative_config": """
    attention_backend code_revision disable_eagle_block_drop disable_padded_drafter_batch draft_load_config
    draft_model_config draft_parallel_config draft_sample_method draft_tensor_parallel_size
    dspark_draft_topk enable_adaptive_verification enforce_eager index_share_for_mtp_iteration
    kv_cache_dtype max_model_len method model moe_backend num_speculative_tokens
    num_speculative_tokens_per_batch_size parallel_drafting prompt_lookup_max prompt_lookup_min
    quantization rejection_sample_method revision suffix_decoding_max_cached_requests
    suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth suffix_decoding_min_token_prob
    synthetic_acceptance_length synthetic_acceptance_rates target_model_config target_parallel_config
    tensor_parallel_size use_heterogeneous_vocab use_local_argmax_reduction
    """,
    "structured_outputs_config": """
    backend disable_additional_properties disable_any_whitespace enable_in_reasoning reasoning_parser
    reasoning_parser_plugin
    """,
}
PARTS = {flag: frozenset(keys.split()) for flag, keys in _KEYS.items()}

RENAMED_PARTS = {"compilation_config": {"level": "mode"}}
"""Keys of older versions, and what they are called today."""
