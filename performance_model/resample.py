"""Other loads made from a recorded one: faster, with longer prompts, or another draw of the same kind."""

from dataclasses import replace
from random import Random

from flettner.performance_model.trace import Trace, TraceRequest, duration_s

BLOCK_S = 30.0
"""Length of a bootstrap block: longer than a burst and most requests, which then stay whole."""

MOST_REDRAWS, ENOUGH_REQUESTS = 8, 4000
"""With some 250 requests, settings that differ by a fraction of a point tie: in a world of bench.tuning the
rank correlation of their order was 0.57 with the load alone and 0.91 with eight redraws."""


def scale_rate(trace: Trace, factor: float) -> Trace:
    """The same requests in the same order, `factor` times as fast."""
    return tuple(replace(request, arrival_s=request.arrival_s / factor) for request in trace)


def scale_prompts(trace: Trace, factor: float) -> Trace:
    """Prompts, and what they share, `factor` times as long."""
    return tuple(
        replace(
            request,
            prompt_tokens=max(1, round(request.prompt_tokens * factor)),
            cached_tokens=min(
                round(request.cached_tokens * factor), max(1, round(request.prompt_tokens * factor))
            ),
        )
        for request in trace
    )


def with_cached_share(trace: Trace, share: float) -> Trace:
    """Each prompt with this share of it cached, where the trace does not tell what prompts have in common."""
    if not share or any(request.cached_tokens for request in trace):
        return trace
    return tuple(
        replace(request, cached_tokens=int(share * request.prompt_tokens), prefix_group="shared")
        for request in trace
    )


def bootstrap(trace: Trace, seed: int, block_s: float = BLOCK_S) -> Trace:
    """As many blocks as the trace has, drawn with replacement (moving-block bootstrap).

    A block may begin anywhere and wraps around the end, so each request is as likely as any other.
    """
    total_s = max(duration_s(trace), 1e-9)
    count = max(1, round(total_s / block_s))
    length_s = total_s / count
    random = Random(f"bootstrap:{seed}")  # noqa: S311 - statistics, not cryptography
    drawn: list[TraceRequest] = []
    for place in range(count):
        drawn += _take_block(trace, random.random() * total_s, length_s, total_s, place * length_s)
    return tuple(drawn)


def with_redraws(trace: Trace) -> list[Trace]:
    """The load itself and, of a small one, up to MOST_REDRAWS others of its kind."""
    count = min(MOST_REDRAWS, ENOUGH_REQUESTS // max(1, len(trace)))
    redraws = (bootstrap(trace, seed) for seed in range(count))
    return [trace, *(redraw for redraw in redraws if redraw)]


def window(trace: Trace, start_s: float, length_s: float) -> Trace:
    """The requests that arrive from `start_s` on for `length_s`, moved to the begin."""
    return tuple(
        replace(request, arrival_s=request.arrival_s - start_s)
        for request in trace
        if start_s <= request.arrival_s < start_s + length_s
    )


def _take_block(
    trace: Trace, start_s: float, length_s: float, total_s: float, to_s: float
) -> list[TraceRequest]:
    offsets = ((request.arrival_s - start_s) % total_s for request in trace)
    block = [
        replace(request, arrival_s=to_s + offset)
        for request, offset in zip(trace, offsets, strict=True)
        if offset < length_s
    ]
    return sorted(block, key=lambda request: request.arrival_s)
