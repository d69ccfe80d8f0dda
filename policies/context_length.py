"""Lower the maximum request length where the KV cache is short and no request is nearly that long."""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import (
    build_optimisation,
    check_options,
    has_insufficient_data,
    has_preemptions,
    is_kv_cache_full,
)
from flettner.policies.shared.step_grid import step_down
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import CONSERVING_MEMORY
from flettner.vllm_facts.releases import cite

LENGTH = "max_model_len"
SOURCE = cite(f"{CONSERVING_MEMORY}; vllm/config/model.py: max_model_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLength:
    """Rule L1, always gated: requests that were accepted before are refused."""

    p99_series: str = "request_tokens_p99"  # of the reading's series: prompt and answer together
    longest_series: str = "request_tokens_max"  # over days, not minutes
    far_below_ratio: float = 0.25  # p99 over max_model_len
    reserve_ratio: float = 1.5  # above the longest that was seen
    kv_full_above_ratio: float = 0.9  # in both halves of the window
    preemptions_at_least_per_s: float = 0.1
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)
        if self.reserve_ratio < 1:
            raise ValueError(f"reserve_ratio must be at least 1, not {self.reserve_ratio}")

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        p99, longest = reading.series.get(self.p99_series), reading.series.get(self.longest_series)
        model = context.config.model if context.config else None
        length = positive_int(context.setting, LENGTH) or (model.max_len if model else None)
        short = is_kv_cache_full(reading, self.kv_full_above_ratio) or has_preemptions(
            reading, self.preemptions_at_least_per_s
        )
        if not p99 or not longest or not length or not short or p99 > self.far_below_ratio * length:
            return ()
        least = int(longest * self.reserve_ratio) + 1
        value = step_down(context.bound(LENGTH), current=length, at_most=least * 2, least=least)
        if value is None:
            return ()
        proposal = build_optimisation(
            "L1",
            reading,
            {LENGTH: value},
            f"99 % of the requests take at most {p99:.0f} tokens, the longest {longest:.0f}, {LENGTH} allows "
            f"{length}, and the KV cache is the bottleneck: lower to {value}",
            ("request_tokens_p99", p99, "tokens"),
            ("request_tokens_max", longest, "tokens"),
            expects="a bound on the KV cache that one request may take; pages are shared as before",
            risks=f"requests of more than {value} tokens are refused, which were accepted before",
            source=SOURCE,
            klass="gated",
            assumed={LENGTH: length},
        )
        return (proposal,)


plugin = ContextLength
