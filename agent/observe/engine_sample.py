"""The increase between two /metrics pages of one vLLM server, as a sample."""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from flettner.agent.domain.reading import Buckets, EngineSample, EngineShare
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.page_totals import EngineTotals, HistogramTotals, PageTotals, has_restarted

COUNTED = (
    *("preemptions", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits"),
    *("drafts", "drafted", "accepted"),
)
"""Counters that become fields of the same name; one that is not exported is 0."""


def sample(
    before: PageTotals | None,
    after: PageTotals,
    *,
    at: datetime,
    server: str,
    interval_s: float,
    version: str | None,
    is_base: bool = True,
) -> EngineSample:
    """The increase from `before`; all 0 over 0 s when `after` is the first page of its process.

    `is_base`: False where pages between the two were refused, so that `before` tells only of a restart.
    Raises MetricsPageError when series are gone although the process is the same: the page is a piece of one.
    """
    restarted = before is not None and has_restarted(before, after)
    if restarted or not is_base:
        before = None
    gone = 0 if before is None else max(before.series - after.series, before.statuses - after.statuses)
    if gone > 0:
        raise MetricsPageError(f"{gone} series are gone: the metrics page is cut")
    if before is None or after.series > before.series:  # what new series had before is not known
        before, interval_s = after, 0.0
    new = {field: count - before.counters.get(field, count) for field, count in after.counters.items()}
    counted: dict[str, Any] = {field: new.get(field, 0.0) for field in COUNTED}
    grown = {field: _increase(before.histograms.get(field), now) for field, now in after.histograms.items()}
    return EngineSample(
        at=at,
        server=server,
        interval_s=interval_s,
        running=after.gauges["running"],
        waiting=after.gauges["waiting"],
        kv_usage=after.gauges.get("kv_usage"),
        **counted,
        cached_tokens=new.get("cached_tokens", new.get("prefix_hits", 0.0)),  # before 0.16 the hits say it
        finished={why: count - before.finished.get(why, 0.0) for why, count in after.finished.items()},
        answered=_grown(before.answered, after.answered) if before.statuses else {},
        rejected=_grown(before.rejected, after.rejected),
        deferred=after.deferred,
        engines={name: _share(before.engines[name], now) for name, now in after.engines.items()}
        if len(after.engines) > 1 and before.engines.keys() == after.engines.keys()
        else {},
        restarted=restarted,
        ttft=grown.get("ttft"),
        itl=grown.get("itl"),
        gaps=grown.get("gaps"),
        e2e=grown.get("e2e"),
        queue=grown.get("queue"),
        prefill=grown.get("prefill"),
        decode=grown.get("decode"),
        inference=grown.get("inference"),
        prompts=grown.get("prompts"),
        answers=grown.get("answers"),
        steps=grown.get("steps"),
        facts=after.facts if version is None else {**after.facts, "version": version},
        missing=after.missing,
    )


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> Mapping[str, float]:
    """Increases by label; a label that is new was 0, and a count that fell is left out."""
    return {
        name: count - before.get(name, 0.0) for name, count in after.items() if count >= before.get(name, 0.0)
    }


def _share(before: EngineTotals, after: EngineTotals) -> EngineShare:
    return EngineShare(
        running=after.running,
        waiting=after.waiting,
        tokens=after.tokens - before.tokens,
        ended=after.ended - before.ended,
    )


def _increase(before: HistogramTotals | None, after: HistogramTotals) -> Buckets | None:
    """None: the edges are not those of the page before."""
    if before is None or before.edges != after.edges:
        return None
    if before == after:
        return _empty(after.edges)
    grown = [now - then for then, now in zip(before.counts, after.counts, strict=True)]
    # `or 0.0`: one object for all zeros, which most of the numbers in a window are
    counts = tuple(high - low or 0.0 for low, high in zip([0.0, *grown], grown, strict=False))
    if min(counts) < 0.0:
        return None
    return Buckets(_finite(after.edges), counts, after.sum - before.sum)


@lru_cache(maxsize=256)
def _empty(edges: tuple[float, ...]) -> Buckets:
    """One object for the samples of idle servers."""
    return Buckets(_finite(edges), (0.0,) * len(edges), 0.0)


@lru_cache(maxsize=256)
def _finite(edges: tuple[float, ...]) -> tuple[float, ...]:
    """Without the infinite edge: one object for all samples, as the windows keep thousands of them."""
    return edges[:-1]
