"""The names of vLLM's metrics in all releases from 0.11, newest first, by the field that they fill.

A server with an old and a new name counts once.
"""

GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # 0..1 in spite of the name
}
COUNTERS: dict[str, tuple[str, ...]] = {
    "preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "cached_tokens": ("vllm:prompt_tokens_cached_total",),  # since 0.16
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "finished": ("vllm:request_success_total",),
}
DRAFTS: dict[str, tuple[str, ...]] = {
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
}
"""Counters of a server with speculative decoding; the pages of others lack them, and nothing is missing."""
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "gaps": ("vllm:request_time_per_output_token_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue": ("vllm:request_queue_time_seconds",),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "inference": ("vllm:request_inference_time_seconds",),
    "prompts": ("vllm:request_prompt_tokens",),
    "answers": ("vllm:request_generation_tokens",),
    "steps": ("vllm:iteration_tokens_total",),  # a histogram in spite of the name
}
CONFIG = "vllm:cache_config_info"
CPU_CACHE = "cpu_kvcache_space_bytes"
"""A label of CONFIG: a number on CPUs (vllm/platforms/cpu.py: check_and_update_config), else None."""
ANSWERED = "http_requests_total"  # a series for each status is added with its first request
REJECTED = "vllm:admission_rejections_total"  # since 0.32
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"  # since 0.20
SLEEP, AWAKE = "vllm:engine_sleep_state", "awake"
BORN = ("process_start_time_seconds", "vllm:prompt_tokens_created")
"""Both are absent with several API server processes; an elastic scale-up changes only the second."""

BY_LABEL = frozenset({ANSWERED, REJECTED, WAITING_BY_REASON, COUNTERS["finished"][0]})
"""A label that is new on the later page was 0 before, so such series may be added."""

TOO_MANY = 1e18
"""No counter reaches this; two near the largest float would add up to infinity."""

WANTED = frozenset(
    [name for names in (*GAUGES.values(), *COUNTERS.values(), *DRAFTS.values()) for name in names]
    + [name + part for names in HISTOGRAMS.values() for name in names for part in ("_bucket", "_sum")]
    + [CONFIG, *BORN, ANSWERED, REJECTED, WAITING_BY_REASON, SLEEP]
)
PLAIN = {
    field: names[0].removeprefix("vllm:").removesuffix("_total")
    for field, names in (GAUGES | COUNTERS | HISTOGRAMS).items()
}
METRICS = frozenset(PLAIN.values())
"""The plain names of all metrics that are read; those that a page lacks are its `missing`."""
