"""Cap the prefill chunks of long prompts so that short prompts can overtake them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.flags_in_force import find_token_budget
from flettner.policies.shared.signals import (
    build_optimisation,
    check_options,
    has_insufficient_data,
    has_long_tail,
    is_kv_cache_free,
    read_number,
)
from flettner.policies.shared.step_grid import step_down
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases import cite

THRESHOLD = "long_prefill_token_threshold"
SOURCE = cite(f"vllm/config/scheduler.py: {THRESHOLD}")
LEAST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompts:
    """Rule P4. A warm knob: unlike a new token budget, it keeps the compile cache valid."""

    p50_series: str = "prompt_tokens_p50"  # of the reading's series
    p99_series: str = "prompt_tokens_p99"
    long_from: float = 1024.0  # tokens of a prompt
    short_below_ratio: float = 0.25  # p50 over p99: mixed
    budget_ratio: float = 0.25  # of a step that one long prompt may take
    tail_ratio: float = 5.0  # TTFT p99 over p50, or ITL's
    requests_at_least: int = 20
    kv_free_below_ratio: float = 0.9  # highest KV usage of the window
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        p50, p99 = reading.series.get(self.p50_series), reading.series.get(self.p99_series)
        exists = KNOBS[THRESHOLD].in_version(reading.facts.get("version"))
        if not p50 or not p99 or read_number(context.setting, THRESHOLD) or exists is False:
            return ()
        mixed = p99 > self.long_from and p50 <= self.short_below_ratio * p99
        late = misses_objective(reading.itl, context.slo.itl, self.requests_at_least)
        if (
            not mixed
            or not (late or self._has_tail(reading))
            or not is_kv_cache_free(reading, self.kv_free_below_ratio)
        ):
            return ()
        budget, length = (
            find_token_budget(context.setting, reading),
            positive_int(context.setting, "max_model_len"),
        )
        most = min(p99, length or p99)
        value = step_down(
            context.bound(THRESHOLD), current=int(most), at_most=budget * self.budget_ratio, least=LEAST
        )
        if value is None or value >= budget:
            return ()
        proposal = build_optimisation(
            "P4",
            reading,
            {THRESHOLD: value},
            f"half of the prompts have at most {p50:.0f} tokens, one in a hundred {p99:.0f} or more, and "
            f"the tail is long ({_describe_tail(reading)}): cap a long prompt at {value} of a "
            f"step's {budget} tokens",
            ("prompt_tokens_p50", p50, "tokens"),
            ("prompt_tokens_p99", p99, "tokens"),
            expects="short prompts and answers overtake long prompts: the tails of TTFT and ITL fall",
            risks="long prompts get their first token later",
            source=SOURCE,
            assumed={THRESHOLD: 0},
        )
        return (replace(proposal, mitigation=late),)

    def _has_tail(self, reading: Reading) -> bool:
        least = self.requests_at_least
        return has_long_tail(reading.ttft, self.tail_ratio, least) or has_long_tail(
            reading.itl, self.tail_ratio, least
        )


def _describe_tail(reading: Reading) -> str:
    return ", ".join(
        f"{name} p50 {latency.p50:.3f} s, p99 {latency.p99:.3f} s"
        for name, latency in (("TTFT", reading.ttft), ("ITL", reading.itl))
        if latency
    )


plugin = LongPrompts
