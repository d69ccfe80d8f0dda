"""The limits that flettner's scheduler class changes while vLLM runs, and its needs (docs/live-limits.md)."""

from typing import Final

CONTROL: Final = "FLETTNER_CONTROL"
"""The environment variable of the server with the path of its control socket."""

SCHEDULER_CLASS: Final = "flettner_vllm.scheduler.Scheduler"
NEEDED: Final = f"`--scheduler-cls {SCHEDULER_CLASS}` and {CONTROL}=/PATH/control.sock"
LIVE: Final = frozenset(
    {
        "max_num_seqs",
        "max_num_active_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "long_prefill_token_threshold",
        "watermark",
    }
)
