"""Choose how many tokens speculative decoding drafts, or none, by what is accepted at the present batch.

A step that verifies K drafted tokens of each sequence yields 1 + K x acceptance tokens instead of 1. Up to
the GPU's ridge, where computing takes as long as reading the weights, it takes hardly longer; above it, its
time grows with its tokens. So the gain changes its sign with the load while the acceptance stays
(vllm-project/vllm#26504). Where the acceptance or K is not known, the gain is not, and nothing is proposed.

A schedule of K by the batch (`num_speculative_tokens_per_batch_size`) is left as it is, and not proposed:
at its thresholds a server fell to a tenth of its throughput (vllm-project/vllm#49548).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import (
    build_optimisation,
    check_options,
    has_insufficient_data,
)
from flettner.vllm_facts import drafts
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.draft_gain import (
    BY_LOOKUP,
    LOOKUP_COST,
    MODEL_COST,
    find_gain,
    find_ridge,
    position_acceptance,
)
from flettner.vllm_facts.sizing.effective_flags import draft_tokens, speculation_method
from flettner.vllm_facts.values import Knob, Value

_ANY_NUMBER = frozenset({"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "mtp"})
"""Methods that draft token by token; others draft a block whose length their draft model was trained for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Rule SD1. Every change is gated, because answers can differ in the last digits of a logit."""

    drafts_at_least: float = 200.0  # in the window; fewer tell nothing of the acceptance
    ridge_tokens: float = 600.0  # of a step, where the GPU is not known: the highest of the usual GPUs
    lookup_cost_ratio: float = LOOKUP_COST  # of a step, for each drafted token: looked up in the text
    model_cost_ratio: float = MODEL_COST  # the same, computed by a head or a small model
    gain_at_least_ratio: float = 0.15  # of more draft tokens, where tokens come too late
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)
        if self.ridge_tokens <= 0:
            raise ValueError(f"ridge_tokens must be above 0, not {self.ridge_tokens}")

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        config = ServeConfig(setting=context.setting)
        drafting = reading.drafting
        if drafting is None or drafting.drafts < self.drafts_at_least:
            return ()
        if not drafts.find_flags(context.setting) or drafts.has_schedule(context.setting):
            return ()
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        accepted = drafting.accepted_ratio
        now = draft_tokens(config) or round(drafting.drafted / drafting.drafts)  # MTP has a number of its own
        if not now:
            return ()
        gains = self._price(reading, context, config, position=position_acceptance(accepted, now), now=now)
        best = max(range(now + 1), key=lambda count: gains[count])
        if gains[now] >= 1:
            best = self._find_more(reading, context, config, gains, now=now)
        to = _choose(context, best) if best != now else {}
        if not to:
            return ()
        values = f"{best} tokens" if best else "none"
        proposal = build_optimisation(
            "SD1",
            reading,
            to,
            f"{accepted:.0%} of the drafted tokens are accepted, {reading.running.mean:.1f} requests ran "
            f"over {reading.span_s:.0f} s: with {now} drafted tokens a sequence gets {gains[now]:.2f} times "
            f"as many tokens a second as without a draft, with {values} {gains[best]:.2f} times",
            ("spec_acceptance", accepted, "ratio"),
            expects=f"about {gains[best] / gains[now] - 1:.0%} more tokens a second at this load",
            risks="answers may differ in the last digits of a logit; at another load another number is best",
            source=f"{DOCS}/features/spec_decode/",
            klass="gated",
        )
        return (proposal,)

    def _price(
        self, reading: Reading, context: Context, config: ServeConfig, *, position: float, now: int
    ) -> Mapping[int, float]:
        """Tokens a second of a sequence, as a multiple of those without a draft, by the number drafted."""
        batch, ridge = max(1.0, min(reading.running.early, reading.running.late)), self._find_ridge(context)
        each = self.lookup_cost_ratio if speculation_method(config) in BY_LOOKUP else self.model_cost_ratio
        return {
            count: find_gain(position, count, batch=batch, ridge=ridge, each=each)
            for count in range(2 * now + 1)
        }

    def _find_more(
        self, reading: Reading, context: Context, config: ServeConfig, gains: Mapping[int, float], *, now: int
    ) -> int:
        """The best number up to twice the present one, where tokens are late; else the present one."""
        late, objective = reading.itl, context.slo.itl
        is_late = late is not None and objective is not None and (late.over_slo or 0) > 1 - objective.share
        if not is_late or speculation_method(config) not in _ANY_NUMBER:
            return now
        best = max(gains, key=lambda count: gains[count])
        return best if gains[best] >= gains[now] * (1 + self.gain_at_least_ratio) else now

    def _find_ridge(self, context: Context) -> float:
        """The tokens of a step at which computing takes as long as reading the weights."""
        return (find_ridge(context.config) if context.config else None) or self.ridge_tokens


def _choose(context: Context, best: int) -> dict[Knob, Value]:
    """The change to the best number of drafts, else to none; empty if the bounds allow neither."""
    given = drafts.find_flags(context.setting)
    to = drafts.set_count(context.setting, best) if best else {}
    off: dict[Knob, Value] = dict.fromkeys(given)
    allowed = (
        change
        for change in (to, off if best <= 1 else {})
        if change and all(context.bound(knob).allows(value) for knob, value in change.items())
    )
    return next(allowed, {})


plugin = Speculation
