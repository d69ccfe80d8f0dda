"""Reduce speculative decoding that does not pay: rejected drafts, or batches too large to gain."""

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
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.values import Knob, Value

TOKENS = "spec_tokens"
FLAGS = ("speculative_config", "spec_method", "spec_model", TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Rule SD1. Fewer draft tokens are gated, because answers can differ; turning it off is a note."""

    acceptance_series: str = "spec_acceptance_ratio"  # of the reading's series: accepted over drafted tokens
    low_below_ratio: float = 0.5
    useless_below_ratio: float = 0.3  # off; between the two fewer tokens are drafted
    large_batch: float = 64.0  # running requests, in both halves of the window
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)
        if self.useless_below_ratio > self.low_below_ratio:
            raise ValueError(
                "useless_below_ratio must be at most low_below_ratio, not "
                f"{self.useless_below_ratio} and {self.low_below_ratio}"
            )

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        given = [knob for knob in FLAGS if context.setting.get(knob) is not None]
        if not given or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        accepted = reading.series.get(self.acceptance_series)
        batch = min(reading.running.early, reading.running.late)
        low = accepted is not None and accepted < self.low_below_ratio
        if not low and batch < self.large_batch:
            return ()
        to = self._to(context, given, accepted if batch < self.large_batch else None)
        if not to:
            return ()
        acceptance = "" if accepted is None else f"{accepted:.0%} of the drafted tokens are accepted, "
        values = "fewer tokens" if TOKENS in to and to[TOKENS] is not None else "off"
        proposal = build_optimisation(
            "SD1",
            reading,
            to,
            f"{acceptance}{reading.running.mean:.1f} requests ran over {reading.span_s:.0f} s: speculation "
            f"costs more than it gives there; try {values}",
            ("spec_acceptance", accepted, "ratio"),
            expects="fewer rejected draft tokens to compute: throughput rises",
            risks="at small batches ITL rises; answers may differ in the last digits of a logit",
            source=f"{DOCS}/features/spec_decode/",
            klass="gated" if set(to) == {TOKENS} else "note",  # method and model are the operator's choice
        )
        return (proposal,)

    def _to(self, context: Context, given: Sequence[Knob], accepted: float | None) -> dict[Knob, Value]:
        """Half the draft tokens if some are useful, else all flags of speculation removed."""
        tokens = positive_int(context.setting, TOKENS) or 0
        fewer = tokens // 2
        some = accepted is not None and accepted >= self.useless_below_ratio
        if some and fewer and context.bound(TOKENS).allows(fewer):
            return {TOKENS: fewer}
        if all(context.bound(knob).allows(None) for knob in given):
            return dict.fromkeys(given)
        return {}


plugin = Speculation
