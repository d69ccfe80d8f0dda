"""How many tokens a sequence gets by drafts in its batch, as a multiple of those without them. Pure.

A step that verifies K drafted tokens of each sequence yields 1 + K x acceptance tokens instead of 1. Up to
the GPU's ridge, where computing takes as long as reading the weights, it takes hardly longer; above it, its
time grows with its tokens (vllm-project/vllm#26504).
"""

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_speed

BY_LOOKUP = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that look drafts up in the text."""
LOOKUP_COST, MODEL_COST = 0.02, 0.05
"""Of a step, for each drafted token: looked up, or computed by a head or a small model."""
_STEPS = 30  # of the bisection for the acceptance of one position
_SIXTEEN_BIT = 2.0


def find_ridge(config: ServeConfig) -> float | None:
    """The tokens of a step at which computing takes as long as reading the weights; None: unknown GPU."""
    speed = find_speed(config.card) if config.card is not None else None
    if speed is None:
        return None
    stored = (config.model.weight_bytes if config.model else None) or _SIXTEEN_BIT
    return max(1.0, speed.tflops * 1000 / speed.gb_per_s * stored / _SIXTEEN_BIT)


def find_gain(position: float, count: int, *, batch: float, ridge: float, each: float) -> float:
    """`position`: the acceptance of one more drafted token of `count`. `each`: the cost of drafting one."""
    return _count_tokens(position, count) / _step_cost(batch, count, ridge, each)


def position_acceptance(accepted: float, count: int) -> float:
    """The probability that one more drafted token is accepted, by the mean over all `count` positions."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        mean = (_count_tokens(middle, count) - 1) / count
        low, high = (middle, high) if mean < accepted else (low, middle)
    return (low + high) / 2


def _count_tokens(position: float, count: int) -> float:
    """Tokens that a step yields for one sequence: its own, and the drafts up to the first rejected one."""
    return sum(position**place for place in range(count + 1))


def _step_cost(batch: float, count: int, ridge: float, each: float) -> float:
    """The time of a step with drafts, as a multiple of one without."""
    return max(1.0, batch * (1 + count) / ridge) / max(1.0, batch / ridge) + count * each
