"""Lower the maximum request length where the KV cache is short; report requests that are longer than it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import (
    build_note,
    build_optimisation,
    check_options,
    has_insufficient_data,
    has_preemptions,
    is_kv_cache_full,
)
from flettner.policies.shared.step_grid import step_down
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.models.context_limit import find_exceeded_context
from flettner.vllm_facts.references import CONSERVING_MEMORY
from flettner.vllm_facts.releases import cite

LENGTH = "max_model_len"
SOURCE = cite(f"{CONSERVING_MEMORY}; vllm/config/model.py: max_model_len")
REFUSAL = cite("vllm/renderers/params.py: maximum context length")
ROUND = 1024  # tokens: the length is estimated
MOST = 0.9  # of the refused requests are longer than nearly all accepted ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLength:
    """Rule L1, always gated: requests that were accepted before are refused; and L2, a note.

    L2: by the sizes that the proxy records, the requests that vLLM answers with 400 are the long ones. A
    longer limit is no gain in time, which a canary would measure, so it is left to a person.
    """

    p99_series: str = "request_tokens_p99"  # of the reading's series: prompt and answer together
    longest_series: str = "request_tokens_max"  # over days, not minutes
    far_below_ratio: float = 0.25  # p99 over max_model_len
    reserve_ratio: float = 1.5  # above the longest that was seen
    kv_full_above_ratio: float = 0.9  # in both halves of the window
    preemptions_at_least_per_s: float = 0.1
    refused_at_least: int = 5  # L2: requests
    refused_at_least_ratio: float = 0.01  # L2: of all requests
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)
        if self.reserve_ratio < 1:
            raise ValueError(f"reserve_ratio must be at least 1, not {self.reserve_ratio}")

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        answer = self._note_refused(reading, context) or self._shorten(reading, context)
        return (answer,) if answer else ()

    def _shorten(self, reading: Reading, context: Context) -> Proposal | None:
        p99, longest = reading.series.get(self.p99_series), reading.series.get(self.longest_series)
        length = _find_length(context)
        short = is_kv_cache_full(reading, self.kv_full_above_ratio) or has_preemptions(
            reading, self.preemptions_at_least_per_s
        )
        if not p99 or not longest or not length or not short or p99 > self.far_below_ratio * length:
            return None
        least = int(longest * self.reserve_ratio) + 1
        value = step_down(context.bound(LENGTH), current=length, at_most=least * 2, least=least)
        if value is None:
            return None
        return build_optimisation(
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

    def _note_refused(self, reading: Reading, context: Context) -> Proposal | None:
        refused, length = reading.refused, _find_length(context)
        if refused is None or refused.longer is None or refused.longer < MOST or length is None:
            return None
        share = refused.count / (refused.count + refused.accepted)
        if refused.count < self.refused_at_least or share < self.refused_at_least_ratio:
            return None
        needed = _estimate_needed(reading)
        about = f"; the longest takes about {needed} tokens with its answer" if needed else ""
        return build_note(
            "L2",
            reading,
            (
                f"{share:.0%} of the requests, {refused.count} in {reading.span_s:.0f} s, were refused with "
                f"status 400, and {refused.longer:.0%} of them are longer than nearly all accepted ones: "
                f"{LENGTH} is {length}{about}"
            ),
            _advise_length(reading, context, needed),
            REFUSAL,
            ("refused", share, "ratio"),
            ("request_tokens_needed", needed, "tokens"),
        )


def _find_length(context: Context) -> int | None:
    model = context.config.model if context.config else None
    return positive_int(context.setting, LENGTH) or (model.max_len if model else None)


def _estimate_needed(reading: Reading) -> int | None:
    """Tokens of the longest refused request, by the tokens in a byte of accepted ones; rounded up."""
    refused, prompts = reading.refused, reading.prompt_tokens_per_s
    if refused is None or not refused.longest_bytes or not refused.accepted_bytes or prompts is None:
        return None
    per_byte = prompts.mean * reading.span_s / (refused.accepted * refused.accepted_bytes)
    tokens = refused.longest_bytes * per_byte + (reading.work.answer_tokens or 0.0)
    return ROUND * ceil(tokens / ROUND)


def _advise_length(reading: Reading, context: Context, needed: int | None) -> str:
    """What a longer limit would take, as far as the needed length is known."""
    propose = f"propose a larger {LENGTH}, or shorten the prompts"
    if needed is None:
        return propose
    config, holds = context.config, reading.kv_cache_tokens
    setting = {**context.setting, LENGTH: needed}
    exceeded = find_exceeded_context(replace(config, setting=setting)) if config else None
    if exceeded is not None:
        return f"the model itself takes at most {exceeded.supported} tokens: shorten the prompts"
    if holds is not None and holds < needed:
        return (
            f"{propose}; the KV cache holds {holds:.0f} tokens, too few for one such request: it needs more "
            "memory first"
        )
    limits = ["the model allows it"] if config and config.model and config.model.max_len else []
    limits += [f"the KV cache holds {holds:.0f} tokens"] if holds is not None else []
    return f"{propose}: {LENGTH} {needed}" + (f" ({', '.join(limits)})" if limits else "")


plugin = ContextLength
