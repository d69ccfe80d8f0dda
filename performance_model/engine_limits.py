"""What bounds the scheduler of one engine: the flags in force and the size of its KV cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Under vLLM's names; `kv_blocks` is what vLLM reports as num_gpu_blocks. None: no limit."""

    kv_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_model_len: int | None = None
    async_scheduling: bool = False  # a step is planned while the one before it runs

    @property
    def sequences(self) -> int:
        """The most that run at once."""
        return min(self.max_num_active_seqs or self.max_num_seqs, self.max_num_seqs)

    @property
    def budget(self) -> int:
        """Tokens of one step."""
        return min(self.max_num_batched_tokens, self.max_num_scheduled_tokens or self.max_num_batched_tokens)

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_size

    def longest_chunk(self, present: int) -> int:
        """Most tokens of one prompt in a step with so many requests; a single request is not limited."""
        if present <= 1 or self.long_prefill_token_threshold == 0:
            return self.kv_tokens
        if self.long_prefill_token_threshold_adaptive:
            return max(self.long_prefill_token_threshold, self.max_num_batched_tokens // present)
        return self.long_prefill_token_threshold
