"""Turn KV offloading to host memory off where contexts are short and the GPU's own cache has capacity."""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import (
    build_optimisation,
    check_options,
    first_allowed,
    has_insufficient_data,
    has_queue,
    is_kv_cache_free,
    read_number,
)
from flettner.vllm_facts.releases import cite

OFFLOAD = "kv_offloading_size"
SOURCE = cite(f"vllm-project/vllm#44294; vllm/config/cache.py: {OFFLOAD}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloading:
    """Rule O1. It does not fire with long contexts or a nearly full cache."""

    length_series: str = "request_tokens_p99"  # of the reading's series: prompt and answer together
    short_below: float = 8192.0  # tokens; by the series, else by max_model_len
    queue_at_least: float = 1.0  # throughput-bound: requests that wait, or ITL over its objective
    kv_free_below_ratio: float = 0.6  # highest KV usage of the window
    requests_at_least: int = 20
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        size, value = read_number(context.setting, OFFLOAD), first_allowed(context.bound(OFFLOAD), None)
        if not size or not value or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        length = reading.series.get(self.length_series) or read_number(context.setting, "max_model_len")
        slow = has_queue(reading, self.queue_at_least) or misses_objective(
            reading.itl, context.slo.itl, self.requests_at_least
        )
        short = length is not None and length <= self.short_below
        if (
            not (slow and short and is_kv_cache_free(reading, self.kv_free_below_ratio))
            or reading.kv_usage is None
        ):
            return ()
        proposal = build_optimisation(
            "O1",
            reading,
            {OFFLOAD: value[0]},
            f"{size:g} GiB of KV offloading are on while requests take at most {length:.0f} tokens, "
            f"the GPU's cache was at most {reading.kv_usage.high:.0%} full over {reading.span_s:.0f} s and "
            f"{reading.waiting.mean:.1f} requests waited",
            ("request_tokens", length, "tokens"),
            ("kv_usage_high", reading.kv_usage.high, "ratio"),
            expects="no copies to host memory: 41 % less throughput is reported with them, not promised",
            risks="prefixes found in host memory until now are computed again",
            source=SOURCE,
        )
        return (proposal,)


plugin = Offloading
