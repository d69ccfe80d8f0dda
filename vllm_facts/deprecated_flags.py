"""Flags and environment variables that vLLM has removed, and their replacements.

Sources: vLLM 0.11.1 to 0.33 (engine/arg_utils.py, envs.py) and its deprecation messages. vLLM refuses to
start with a removed flag and ignores a removed variable silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.values import Knob, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeprecatedFlag:
    """The replacement of a removed flag or variable."""

    by: str  # a current knob, dotted for a part of one; empty: no replacement is needed
    since: str  # the first known release without the old name
    how: str  # a sentence for the user
    carries: bool = False  # the old value is passed to `by` unchanged
    to: Mapping[Knob, Value] = field(default_factory=dict)  # else these values replace it
    by_value: Mapping[Value, Mapping[Knob, Value]] = field(
        default_factory=dict
    )  # else the replacement of each old value
    switch: bool = False  # it took no value
    by_hand: bool = False  # the value cannot be converted: the user must rewrite it

    def gone(self, version: str | None) -> bool | None:
        """Whether that release lacks the old name; None for an unreadable version."""
        release, since = release_of(version), release_of(self.since)
        return None if release is None or since is None else release >= since

    def changes(self, old: Knob, value: Value) -> dict[Knob, Value]:
        """The equivalent edit today: removal of the old flag, and its replacement; empty if `by_hand`."""
        if self.by_hand:
            return {}
        new: dict[Knob, Value] = {self.by: value} if self.carries else {}
        return {old: None, **new, **(self.to if value is not False else {}), **self.by_value.get(value, {})}


_MULTI_STEP = (
    "Multi-step scheduling went with the old engine; async_scheduling does what it was for, by itself."
)
_DEFAULT = "It is what today's engine does: leave it out."
_SPEC = (
    'Write --speculative-config \'{"model": …, "num_speculative_tokens": …}\', or --spec-model since 0.22.'
)
_GUIDED = "Structured outputs have one option: --structured-outputs-config."
_EPLB = "Expert load balancing has one option: --eplb-config."
_CHUNKS = (
    "The scheduler shares the step among all prompts; long_prefill_token_threshold caps a long one's chunk."
)
_POOLING = ("classify", "embed", "embedding", "reward", "score")
_ROPE = "Changes of the model's config go through --hf-overrides."

RENAMED: dict[Knob, DeprecatedFlag] = {
    "num_scheduler_steps": DeprecatedFlag(by="", since="0.11", how=_MULTI_STEP),
    "multi_step_stream_outputs": DeprecatedFlag(by="", since="0.11", how=_MULTI_STEP, switch=True),
    "speculative_model": DeprecatedFlag(by="speculative_config", since="0.11", how=_SPEC, by_hand=True),
    "num_speculative_tokens": DeprecatedFlag(by="speculative_config", since="0.11", how=_SPEC, by_hand=True),
    "use_v2_block_manager": DeprecatedFlag(by="", since="0.12", how=_DEFAULT, switch=True),
    "preemption_mode": DeprecatedFlag(
        by="", since="0.12", how="Preempted requests are always computed again: leave it out."
    ),
    "disable_async_output_proc": DeprecatedFlag(by="", since="0.12", how=_DEFAULT),
    "scheduler_delay_factor": DeprecatedFlag(
        by="", since="0.12", how="It went with the old engine: leave it out."
    ),
    "worker_use_ray": DeprecatedFlag(
        by="distributed_executor_backend",
        since="0.12",
        how="Write --distributed-executor-backend ray.",
        switch=True,
        to={"distributed_executor_backend": "ray"},
    ),
    "device": DeprecatedFlag(
        by="", since="0.12", how="The device is the one that vLLM was built for: leave it out."
    ),
    "max_seq_len_to_capture": DeprecatedFlag(
        by="max_cudagraph_capture_size",
        since="0.12",
        how="Graphs are captured by batch size, not by length: leave it out.",
    ),
    "enable_reasoning": DeprecatedFlag(
        by="reasoning_parser", since="0.10", how="Naming --reasoning-parser is enough: leave it out."
    ),
    "rope_theta": DeprecatedFlag(by="hf_overrides.rope_theta", since="0.12", how=_ROPE, carries=True),
    "rope_scaling": DeprecatedFlag(by="hf_overrides.rope_scaling", since="0.12", how=_ROPE, carries=True),
    "guided_decoding_backend": DeprecatedFlag(
        by="structured_outputs_config.backend", since="0.12", how=_GUIDED, carries=True
    ),
    "guided_decoding_disable_fallback": DeprecatedFlag(
        by="structured_outputs_config", since="0.12", how=f"{_GUIDED} A failed backend has no fallback now."
    ),
    "guided_decoding_disable_any_whitespace": DeprecatedFlag(
        by="structured_outputs_config.disable_any_whitespace", since="0.12", how=_GUIDED
    ),
    "guided_decoding_disable_additional_properties": DeprecatedFlag(
        by="structured_outputs_config.disable_additional_properties", since="0.12", how=_GUIDED
    ),
    "num_redundant_experts": DeprecatedFlag(
        by="eplb_config.num_redundant_experts", since="0.12", how=_EPLB, carries=True
    ),
    "eplb_window_size": DeprecatedFlag(by="eplb_config.window_size", since="0.12", how=_EPLB, carries=True),
    "eplb_step_interval": DeprecatedFlag(
        by="eplb_config.step_interval", since="0.12", how=_EPLB, carries=True
    ),
    "eplb_log_balancedness": DeprecatedFlag(
        by="eplb_config.log_balancedness", since="0.12", how=_EPLB, switch=True
    ),
    "override_pooler_config": DeprecatedFlag(
        by="pooler_config", since="0.12", how="Write --pooler-config.", carries=True
    ),
    "lora_extra_vocab_size": DeprecatedFlag(
        by="", since="0.12", how="Adapters cannot add tokens any more: leave it out."
    ),
    "num_lookahead_slots": DeprecatedFlag(
        by="", since="0.12", how="Speculation sets it itself: leave it out."
    ),
    "cuda_graph_sizes": DeprecatedFlag(
        by="cudagraph_capture_sizes", since="0.13", how="Write --cudagraph-capture-sizes.", carries=True
    ),
    "task": DeprecatedFlag(
        by="runner",
        since="0.13",
        how="Write --runner generate or pooling (--convert classify makes a generative model a classifier).",
        by_value={
            "generate": {"runner": "generate"},
            **{task: {"runner": "pooling"} for task in _POOLING},
        },
    ),
    "disable_mm_preprocessor_cache": DeprecatedFlag(
        by="mm_processor_cache_gb",
        since="0.13",
        how="Write --mm-processor-cache-gb 0.",
        to={"mm_processor_cache_gb": 0},
    ),
    "enable_multimodal_encoder_data_parallel": DeprecatedFlag(
        by="mm_encoder_tp_mode",
        since="0.13",
        how="Write --mm-encoder-tp-mode data.",
        to={"mm_encoder_tp_mode": "data"},
    ),
    "disable_log_requests": DeprecatedFlag(
        by="enable_log_requests",
        since="0.17",
        how="Requests are logged only with --enable-log-requests: leave it out.",
    ),
    "logits_processor_pattern": DeprecatedFlag(
        by="logits_processors", since="0.17", how="Name the processors with --logits-processors."
    ),
    "swap_space": DeprecatedFlag(
        by="",
        since="0.18",
        how="Preempted requests are computed again: leave it out. Against preemptions: watermark (since "
        "0.24) or fewer sequences; for reuse from host memory: kv_offloading_size.",
    ),
    "disable_frontend_multiprocessing": DeprecatedFlag(
        by="", since="0.19", how="The engine is a process of its own."
    ),
    "max_num_partial_prefills": DeprecatedFlag(by="long_prefill_token_threshold", since="0.27", how=_CHUNKS),
    "max_long_partial_prefills": DeprecatedFlag(by="long_prefill_token_threshold", since="0.27", how=_CHUNKS),
    "calculate_kv_scales": DeprecatedFlag(
        by="", since="0.28", how="Scales come from the checkpoint, else they are 1.0: use one that has them."
    ),
    "override_attention_dtype": DeprecatedFlag(
        by="dtype", since="0.28", how="Attention has the model's dtype."
    ),
}
"""By the old flag's canonical name. Versions up to 0.12 are upper bounds: older sources were not read."""

_MOE = "Choose the experts' kernels with --moe-backend: flashinfer_trtllm, flashinfer_cutlass or another."
_PROFILER = "Profiling has one option: --profiler-config."
_NOTHING = "Take it out."


def _attention(part: str) -> DeprecatedFlag:
    return DeprecatedFlag(
        by=f"attention_config.{part}",
        since="0.16",
        how=f"Write --attention-config.{part}.",
    )


ENVIRONMENT: dict[str, DeprecatedFlag] = {
    "VLLM_USE_V1": DeprecatedFlag(by="", since="0.12", how="There is one engine: take it out."),
    "VLLM_MM_INPUT_CACHE_GIB": DeprecatedFlag(
        by="mm_processor_cache_gb", since="0.13", how="Write --mm-processor-cache-gb.", carries=True
    ),
    "VLLM_ATTENTION_BACKEND": DeprecatedFlag(
        by="attention_backend",
        since="0.16",
        how="Write --attention-backend, or leave the choice to vLLM.",
        carries=True,
    ),
    "VLLM_ALL2ALL_BACKEND": DeprecatedFlag(
        by="all2all_backend", since="0.16", how="Write --all2all-backend.", carries=True
    ),
    "VLLM_FLASH_ATTN_VERSION": _attention("flash_attn_version"),
    "VLLM_USE_TRTLLM_ATTENTION": _attention("use_trtllm_attention"),
    "VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH": _attention("flash_attn_max_num_splits_for_cuda_graph"),
    "VLLM_FLASHINFER_DISABLE_Q_QUANTIZATION": _attention("disable_flashinfer_q_quantization"),
    "VLLM_DISABLE_FLASHINFER_PREFILL": DeprecatedFlag(by="", since="0.16", how=_NOTHING),
    "VLLM_TORCH_PROFILER_DIR": DeprecatedFlag(
        by="profiler_config.torch_profiler_dir", since="0.16", how=_PROFILER, carries=True
    ),
    "VLLM_FUSED_MOE_CHUNK_SIZE": DeprecatedFlag(by="", since="0.18", how=_NOTHING),
    "VLLM_ENABLE_FUSED_MOE_ACTIVATION_CHUNKING": DeprecatedFlag(by="", since="0.18", how=_NOTHING),
    "VLLM_SLEEP_WHEN_IDLE": DeprecatedFlag(by="", since="0.18", how=_NOTHING),
    "VLLM_MOE_DP_CHUNK_SIZE": DeprecatedFlag(by="", since="0.20", how=_NOTHING),
    "VLLM_ENABLE_MOE_DP_CHUNK": DeprecatedFlag(by="", since="0.20", how=_NOTHING),
    "VLLM_RPC_TIMEOUT": DeprecatedFlag(by="", since="0.23", how=_NOTHING),
    **dict.fromkeys(
        (
            "VLLM_FLASHINFER_MOE_BACKEND",
            "VLLM_USE_FLASHINFER_MOE_FP16",
            "VLLM_USE_FLASHINFER_MOE_FP4",
            "VLLM_USE_FLASHINFER_MOE_FP8",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS",
        ),
        DeprecatedFlag(by="moe_backend", since="0.24", how=_MOE),
    ),
    "VLLM_MXFP4_USE_MARLIN": DeprecatedFlag(
        by="moe_backend", since="0.24", how="Write --moe-backend marlin or --linear-backend marlin."
    ),
    "VLLM_NVFP4_GEMM_BACKEND": DeprecatedFlag(
        by="linear_backend", since="0.24", how="Write --linear-backend."
    ),
    "VLLM_USE_NVFP4_CT_EMULATIONS": DeprecatedFlag(
        by="linear_backend", since="0.24", how="Write --linear-backend emulation."
    ),
    "VLLM_USE_FBGEMM": DeprecatedFlag(
        by="linear_backend", since="0.24", how="Write --linear-backend fbgemm."
    ),
    "VLLM_MM_HASHER_ALGORITHM": DeprecatedFlag(
        by="mm_hasher_algorithm", since="0.30", how="Write --mm-hasher-algorithm.", carries=True
    ),
}
"""Environment variables. Flags replace them, so `changes` does not apply."""

CHANGED: dict[Knob, str] = {
    "enable_chunked_prefill": "The current engine always does it if possible; tune the budget instead, "
    "max_num_batched_tokens. Off, vLLM itself warns of crashes and wrong answers.",
    "enable_prefix_caching": "On by itself for generative models: only --no-enable-prefix-caching says more.",
    "disable_log_stats": "Takes away all vllm metrics, not the log lines alone.",
    "disable_cascade_attn": "Does nothing in 0.32: cascade attention is gone.",
    "prefill_schedule_interval": "Before 0.33 with data parallelism only; since then always.",
    "optimization_level": "3 is the same as 2 today.",
}
"""Flags that vLLM accepts and whose effect differs from their name or from older guides."""
