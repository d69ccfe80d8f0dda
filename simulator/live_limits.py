"""The control endpoint of flettner's scheduler class, where the command line names that class."""

import logging
from collections.abc import Callable, Mapping
from time import monotonic

from flettner.flettner_vllm.scheduler import (
    CONTROL,
    Knobs,
    Limit,
    Value,
    find_address,
    read_token,
    start_control,
)
from flettner.simulator.flags import Flags
from flettner.vllm_facts.live_limits import SCHEDULER_CLASS

_log = logging.getLogger("vllm")


def find_knobs(flags: Flags, now: Callable[[], float] = monotonic) -> Knobs:
    """Return the values and ranges as the scheduler class reads them from vLLM's scheduler."""
    limits = flags.limits
    slots = limits.max_num_seqs
    budget = min(
        limits.max_num_batched_tokens, limits.max_num_scheduled_tokens or limits.max_num_batched_tokens
    )
    start: dict[str, Value] = {
        "max_num_seqs": limits.max_num_active_seqs or slots,
        "max_num_scheduled_tokens": budget,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "watermark": limits.watermark,
    }
    least = min(budget, slots) if limits.enable_chunked_prefill else budget
    ranges = {
        "max_num_seqs": Limit(1, slots),
        "max_num_scheduled_tokens": Limit(least, budget),
        "long_prefill_token_threshold": Limit(0, budget),
        "watermark": Limit(0.0, 0.5),
    }
    return Knobs(start, ranges, now)


def open_control(flags: Flags, env: Mapping[str, str]) -> Knobs | None:
    """Return the values that the endpoint sets; None, with a line in the log, where none is opened."""
    if flags.given.get("scheduler_cls") != SCHEDULER_CLASS:
        return None
    knobs = find_knobs(flags)
    try:
        start_control(
            find_address(env.get(CONTROL, ""), None), knobs, read_token(), flags.simulation.release.version
        )
    except (OSError, ValueError) as error:
        _log.warning("flettner: no limit can be changed at %s: %s", env.get(CONTROL), error)
        return None
    return knobs
