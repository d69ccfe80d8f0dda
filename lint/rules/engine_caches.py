"""Prefixes that each engine of a data parallel server caches for itself: rule X2."""

from collections.abc import Iterable

from flettner.lint.recogniser import LOG
from flettner.lint.rules.switches import SHARED_PREFIXES
from flettner.vllm_facts.log_counts import Count, read_counts
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, layout, text_of

_BALANCED_OUTSIDE = (
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_multi_port_external_lb",
    "data_parallel_rank",
)
_FEW_HITS = 50.0  # percent of the prompts' tokens
_ROOMY = 80.0  # percent of the KV cache in use: beyond it prefixes are dropped for want of room


def _check_engines(config: ServeConfig) -> Iterable[Finding]:
    """VLLM's own balancer looks at load only: a conversation's next turn comes to any engine."""
    engines, talks = layout(config).dp, bool(text_of(config, "tool_call_parser"))
    if engines == 1 or any(config.setting.get(knob) is not None for knob in _BALANCED_OUTSIDE):
        return
    if config.profile not in SHARED_PREFIXES and not talks:
        return
    latest = {count.engine: count for count in read_counts(config.log) if count.prompts}
    if len(latest) < 2 or not all(map(_misses, latest.values())):  # noqa: PLR2004 - engines to compare
        return
    hits = sorted(count.hits or 0.0 for count in latest.values())
    yield Finding(
        rule="X2",
        why=(
            f"each of {engines} engines caches its own prefixes, and vLLM's balancer sends the next turn of "
            f"a conversation to any of them: by the log {hits[0]:g} to {hits[-1]:g} % of the prompts' tokens "
            "hit, with room in the cache"
        ),
        expects=(
            "if conversations have several turns, keep each at one engine: the header X-data-parallel-rank "
            "of its requests, or --data-parallel-external-lb with a router that knows prefixes or sessions"
        ),
        risks="engines are loaded less evenly",
        evidence={"data_parallel_size": engines, "hits_percent": hits[-1]},
    )


def _misses(count: Count) -> bool:
    return count.hits is not None and count.hits < _FEW_HITS and (count.usage or 0.0) < _ROOMY


LINTS = (
    DeploymentCheck(
        rules=("X2",),
        find=_check_engines,
        reports="few prefix hits in each engine of a server with data parallelism, by the counts of the log",
        source="vllm-project/vllm#52463; llm-d/llm-d-router#750 (the header)",
        evidence_for=(
            "83 instead of 63 % of the tokens hit with a router that keeps conversations together "
            "(vllm-project/vime#120)"
        ),
        needs=LOG,
    ),
)
