"""Turn prefix caching on where it is off; report where it is on and never hits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.causes import find_misses
from flettner.policies.shared.signals import (
    build_note,
    build_optimisation,
    check_options,
    first_allowed,
    has_insufficient_data,
)
from flettner.vllm_facts.releases import cite

CACHING = "enable_prefix_caching"
SOURCE = cite("vllm/config/cache.py: enable_prefix_caching")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """Rules X1 and X2. Prefix caching that vLLM itself turned off stays off: the model lacks it."""

    hits_below_ratio: float = 0.01  # X2: of the prompt tokens looked up
    prompt_tokens_at_least: float = 20_000.0  # X2: computed in the window; fewer are no evidence
    requests_at_least: int = 20  # behind a missed objective, which X1 mitigates
    prefill_at_least_ratio: float = 0.2  # X1: of the engine's time; less is not worth a change
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        off = context.setting.get(CACHING) is False
        answer = self._enable(reading, context) if off else self._note_no_hits(reading)
        return (answer,) if answer else ()

    def _enable(self, reading: Reading, context: Context) -> Proposal | None:
        model = context.config.model if context.config else None
        value = first_allowed(context.bound(CACHING), None, True)
        prompts = reading.prompt_tokens_per_s
        if (model and model.hybrid) or not value or prompts is None or prompts.mean <= 0:
            return None
        if not self._prompts_matter(reading):
            return None
        proposal = build_optimisation(
            "X1",
            reading,
            {CACHING: value[0]},
            f"prefix caching is turned off while {prompts.mean:.0f} prompt tokens/s are computed: "
            "prefixes that prompts share are not reused",
            ("prompt_tokens", prompts.mean, "tokens/s"),
            expects="shared prefixes are computed once: TTFT falls",
            risks="close to none: cached blocks are evicted first when the cache is full",
            source=SOURCE,
        )
        return replace(proposal, mitigation=bool(find_misses(reading, context.slo, self.requests_at_least)))

    def _prompts_matter(self, reading: Reading) -> bool:
        """True if the engine reads prompts much of the time, or if its time is not known."""
        tokens, work = reading.prompt_tokens_per_s, reading.work
        busy = tokens.mean * work.token_s if tokens and work.token_s else None
        return busy is None or busy >= self.prefill_at_least_ratio

    def _note_no_hits(self, reading: Reading) -> Proposal | None:
        hits, prompts = reading.prefix_hit_ratio, reading.prompt_tokens_per_s
        if hits is None or prompts is None or hits >= self.hits_below_ratio:
            return None
        tokens = prompts.mean * reading.span_s
        if tokens < self.prompt_tokens_at_least:
            return None
        why = f"of {tokens:.0f} prompt tokens in {reading.span_s:.0f} s {hits:.1%} were in the prefix cache"
        advice = (
            "if prompts share a prefix, check for a template with a date or an id in front, "
            "or for routing that spreads one conversation over servers"
        )
        return build_note("X2", reading, why, advice, SOURCE, ("prefix_hit_ratio", hits, "ratio"))


plugin = PrefixCache
