"""Suggest a smaller share of GPU memory beside other processes on the card, where savings are wanted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from flettner.agent.domain.lateness import misses_any
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.gpu_share import SHARE, find_memory_share, find_used_share
from flettner.policies.shared.signals import (
    build_evidence,
    check_options,
    has_insufficient_data,
    has_preemptions,
)
from flettner.vllm_facts.references import OPTIMIZATION
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, longest_request

SOURCE = cite(f"{OPTIMIZATION} (preemption); vllm/config/cache.py: gpu_memory_utilization")
FIXED = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
STEPS = 100  # a share is a whole number of percent


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareMemory:
    """Rule M7. The KV cache keeps room for the fullest minute of the week, and for the longest request. Where
    prompts share a prefix the rest of the cache is no waste, and stays.
    """

    room_at_most_ratio: float = 0.5  # of the smaller KV cache, that the fullest minute may fill
    hours_at_least: float = 144  # of known hours: a week has days unlike the others
    others_at_least_ratio: float = 0.1  # of the GPU's memory, beside the share of this server
    spared_at_least_ratio: float = 0.1  # the same, that a change must free
    prefix_hits_below_ratio: float = 0.1
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        peak, config = context.kv_peak, context.config
        if not context.saves or peak is None or config is None or peak.hours < self.hours_at_least:
            return ()
        if has_insufficient_data(reading, self.coverage_at_least_ratio) or misses_any(
            reading, context.slo, 1
        ):
            return ()
        if has_preemptions(reading) or any(context.setting.get(knob) is not None for knob in FIXED):
            return ()
        if (reading.prefix_hit_ratio or 0.0) >= self.prefix_hits_below_ratio:
            return ()
        share, used = find_memory_share(reading, context), find_used_share(reading)
        if share is None or used is None or used - share < self.others_at_least_ratio:
            return ()
        wanted = self._find_share(reading, context, config, share)
        if wanted is None or share - wanted < self.spared_at_least_ratio:
            return ()
        return (
            Proposal(
                rule="M7",
                to={SHARE: wanted},
                assumed={SHARE: share},
                why=(
                    f"in the fullest minute of the last {peak.hours / 24:.0f} days the KV cache held "
                    f"{peak.tokens:,.0f} tokens of {reading.kv_cache_tokens:,.0f}, while other processes "
                    f"have {used - share:.0%} of the GPU's memory beside this server's {share:.0%}"
                ),
                expects=(
                    f"{share - wanted:.0%} of the GPU's memory for others; the fullest minute fills at most "
                    f"{self.room_at_most_ratio:.0%} of the cache that stays"
                ),
                risks="more load than the week had, or longer requests, fill the smaller cache; M1 and M3 "
                "raise the share again only while the memory is free",
                source=SOURCE,
                evidence=build_evidence(
                    reading, ("kv_tokens_of_week", peak.tokens, "tokens"), ("gpu_memory_used", used, "ratio")
                ),
                klass="gated",
                cheaper=True,
            ),
        )

    def _find_share(
        self, reading: Reading, context: Context, config: ServeConfig, share: float
    ) -> float | None:
        """The least share with room enough, inside the operator's bound; None where that is not known."""
        fit, longest, bound = estimate_fit(config, share=share), longest_request(config), context.bound(SHARE)
        tokens, peak = reading.kv_cache_tokens, context.kv_peak
        if fit is None or longest is None or peak is None or not tokens or fit.kv_gib <= 0:
            return None
        kept = max(peak.tokens / self.room_at_most_ratio, longest) / tokens
        spared = max(0.0, 1 - kept) * fit.kv_gib / fit.budget_gib * share
        wanted = max(ceil(STEPS * (share - spared)) / STEPS, bound.min or 0.0)
        return wanted if bound.allows(wanted) else None


plugin = SpareMemory
