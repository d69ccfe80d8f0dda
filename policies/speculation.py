"""Reduce speculative decoding that does not pay at the present batch.

A step that verifies K drafted tokens of each sequence yields 1 + K x acceptance tokens instead of 1. Up to
the GPU's ridge, where computing takes as long as reading the weights, it takes hardly longer; above it, its
time grows with its tokens. Where the acceptance or K is not known, the gain is not, and nothing is proposed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import (
    build_optimisation,
    check_options,
    has_insufficient_data,
)
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import draft_tokens, speculation_method
from flettner.vllm_facts.sizing.gpus import find_speed
from flettner.vllm_facts.values import Knob, Value

TOKENS = "spec_tokens"
FLAGS = ("speculative_config", "spec_method", "spec_model", TOKENS)
_BY_LOOKUP = frozenset({"ngram", "ngram_gpu", "suffix"})
_STEPS = 30  # of the bisection for the acceptance of one position
SIXTEEN_BIT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Rule SD1. Fewer draft tokens are gated, because answers can differ; turning it off is a note."""

    acceptance_series: str = "spec_acceptance_ratio"  # of the reading's series: accepted over drafted tokens
    ridge_tokens: float = 600.0  # of a step, where the GPU is not known: the highest of the usual GPUs
    lookup_cost_ratio: float = 0.02  # of a step, for each drafted token: looked up in the text
    model_cost_ratio: float = 0.05  # the same, computed by a head or a small model
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)
        if self.ridge_tokens <= 0:
            raise ValueError(f"ridge_tokens must be above 0, not {self.ridge_tokens}")

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        given = [knob for knob in FLAGS if context.setting.get(knob) is not None]
        config = ServeConfig(setting=context.setting)
        drafts, accepted = draft_tokens(config), reading.series.get(self.acceptance_series)
        if not given or not drafts or accepted is None or not 0 <= accepted <= 1:
            return ()
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        batch, ridge = max(1.0, min(reading.running.early, reading.running.late)), self._find_ridge(context)
        each = self.lookup_cost_ratio if speculation_method(config) in _BY_LOOKUP else self.model_cost_ratio
        position = _position_acceptance(accepted, drafts)
        gains = {
            count: _count_tokens(position, count) / _step_cost(batch, count, ridge, each)
            for count in range(drafts + 1)
        }
        if gains[drafts] >= 1:
            return ()
        to = _choose(context, given, max(gains, key=lambda count: gains[count]))
        if not to:
            return ()
        values = "fewer tokens" if to.get(TOKENS) is not None else "off"
        proposal = build_optimisation(
            "SD1",
            reading,
            to,
            f"{accepted:.0%} of the drafted tokens are accepted, {reading.running.mean:.1f} requests ran "
            f"over {reading.span_s:.0f} s: a step with {drafts} drafts yields "
            f"{_count_tokens(position, drafts):.2f} tokens of a sequence and takes "
            f"{_step_cost(batch, drafts, ridge, each):.2f} times as long; try {values}",
            ("spec_acceptance", accepted, "ratio"),
            expects="fewer rejected draft tokens to compute: throughput rises",
            risks="at small batches ITL rises; answers may differ in the last digits of a logit",
            source=f"{DOCS}/features/spec_decode/",
            klass="gated" if set(to) == {TOKENS} else "note",  # method and model are the operator's choice
        )
        return (proposal,)

    def _find_ridge(self, context: Context) -> float:
        """The tokens of a step at which computing takes as long as reading the weights."""
        card = context.config.card if context.config else None
        speed = find_speed(card) if card is not None else None
        model = context.config.model if context.config else None
        if speed is None:
            return self.ridge_tokens
        stored = (model.weight_bytes if model else None) or SIXTEEN_BIT
        return max(1.0, speed.tflops * 1000 / speed.gb_per_s * stored / SIXTEEN_BIT)


def _position_acceptance(accepted: float, drafts: int) -> float:
    """The probability that one more drafted token is accepted, by the mean over all `drafts` positions."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        mean = (_count_tokens(middle, drafts) - 1) / drafts
        low, high = (middle, high) if mean < accepted else (low, middle)
    return (low + high) / 2


def _count_tokens(position: float, drafts: int) -> float:
    """Tokens that a step yields for one sequence: its own, and the drafts up to the first rejected one."""
    return sum(position**place for place in range(drafts + 1))


def _step_cost(batch: float, drafts: int, ridge: float, each: float) -> float:
    """The time of a step with drafts, as a multiple of one without."""
    return max(1.0, batch * (1 + drafts) / ridge) / max(1.0, batch / ridge) + drafts * each


def _choose(context: Context, given: Sequence[Knob], best: int) -> dict[Knob, Value]:
    """The best number of drafts, if a flag of its own has it; else all flags of speculation removed."""
    if best and TOKENS in given and context.bound(TOKENS).allows(best):
        return {TOKENS: best}
    if all(context.bound(knob).allows(None) for knob in given):
        return dict.fromkeys(given)
    return {}


plugin = Speculation
