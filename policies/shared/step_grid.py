"""The next value of a knob: on a coarse grid, within bounds, without oscillation."""

from collections.abc import Collection, Sequence
from math import ceil, floor

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.vllm_facts.values import Knob, Value

LADDER = tuple(sorted(rung for octave in range(24) for rung in (1 << octave, 3 << octave)))
"""1, 2, 3, 4, 6, 8, 12 …: few values, so that vLLM often meets a compiled value again."""
BATCHES = (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))
"""The batch sizes that vLLM captures in CUDA graphs by default (vllm/config/vllm.py)."""


def step_up(bound: Bound, *, current: int, wanted: int, limit: float) -> int | None:
    """The smallest of `current` times 2, 4, 8 … that covers `wanted`.

    If none is allowed: the largest allowed doubling, value of the ladder or of the operator's own, or None.
    """
    doublings = [current << octave for octave in range(1, 24)]
    candidates = [*doublings, *LADDER, *_listed_values(bound)]
    allowed = [value for value in candidates if current < value <= limit and bound.allows(value)]
    enough = next((value for value in allowed if value in doublings and value >= wanted), None)
    return max(allowed, default=None) if enough is None else enough


def step_down(
    bound: Bound,
    *,
    current: int,
    at_most: float,
    least: int = 1,
    grid: Sequence[int] = LADDER,
) -> int | None:
    """The largest value of the grid up to `at_most`, or the nearest value that the bound allows."""
    rungs = {rung for rung in (*grid, *_listed_values(bound)) if least <= rung < current}
    allowed = sorted(rung for rung in rungs if bound.allows(rung))
    if not allowed:
        return None
    return max((rung for rung in allowed if rung <= at_most), default=allowed[0])


def was_reversed_recently(
    reading: Reading, context: Context, knobs: Collection[Knob], *, upwards: bool, settle_s: float
) -> bool:
    """True if one of `knobs` was promoted in the other direction less than `settle_s` ago.

    A change from or to an unknown default counts as the other direction.
    """
    return any(
        _is_raise(outcome.before.get(knob), outcome.to[knob]) is not upwards
        for outcome in context.outcomes
        if outcome.result == "promoted" and (reading.at - outcome.at).total_seconds() < settle_s
        for knob in knobs
        if knob in outcome.to
    )


def _is_raise(before: Value, after: Value) -> bool | None:
    if isinstance(before, (int, float)) and isinstance(after, (int, float)) and before != after:
        return after > before
    return None


def _listed_values(bound: Bound) -> list[int]:
    """Whole numbers that the operator's bound names."""
    ends = [ceil(bound.min)] if bound.min is not None else []
    ends += [floor(bound.max)] if bound.max is not None else []
    return ends + [value for value in bound.allowed if isinstance(value, int) and not isinstance(value, bool)]
