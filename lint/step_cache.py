"""KV cache that a request takes for the tokens of a step, whatever its own length. Pure.

A layer that keeps only a window holds, beside it, all tokens of the steps in flight. So a request takes
    per_token * length + window * min(length, tokens of a step),
and the log of a failed start has two points of it: what the full length takes, and the length that fits.
"""

from dataclasses import dataclass

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import effective_batched_tokens
from flettner.vllm_facts.sizing.kv_cache import keeps_windows

LEAST_STEP = 1024  # tokens: with fewer, prompts take long
_IN_FLIGHT = 2  # steps, with asynchronous scheduling: only a length that fills them all measures it
_PROPORTIONAL = 0.8  # of the length that a cache of this size would hold without such layers


@dataclass(frozen=True, slots=True)
class SmallerStep:
    """`tokens`: with which a request of full length fits. `held_gib`: what those of the present step take."""

    tokens: int
    present: int
    held_gib: float


def find_smaller_step(config: ServeConfig, wanted: int, fits: int) -> SmallerStep | None:
    """None if the two points of the log are those of a cache that grows with the length alone."""
    start, step = config.start, effective_batched_tokens(config)
    known = start is not None and start.request_gib is not None and start.kv_gib is not None
    if start is None or not known or step is None or not keeps_windows(config) or not 0 < fits < wanted:
        return None
    needed, room = start.request_gib or 0.0, start.kv_gib or 0.0
    if fits / wanted >= _PROPORTIONAL * room / needed or step >= wanted:
        return None
    if fits >= step:
        per_token = (needed - room) / (wanted - fits)
        window, doubt = (needed - per_token * wanted) / step, 1
    else:
        window = (room / fits - needed / wanted) / (1 - step / wanted)
        per_token, doubt = room / fits - window, _IN_FLIGHT
    if window <= 0 or per_token < 0:
        return None
    most = (room - per_token * wanted) / window / doubt
    tokens = 1 << (int(most).bit_length() - 1) if most >= LEAST_STEP else 0
    return SmallerStep(tokens, step, window * step) if 0 < tokens < step else None
