"""What of a request's latency passes outside of the engine: HTTP, tokenizer, output on its way."""

from flettner.performance_model.band import Band
from flettner.vllm_facts.metrics.page_totals import PageTotals

OUTSIDE = Band(value=0.008, low=0.004, high=0.016)
"""Seconds, where they are not measured. Of an 8B model on an H100: 7 ms (TTFT of single requests less a step,
vLLM 0.21, yobitelcomm.github.io/bench), 6 to 9 (0.25, under load), 16 (inference-sim, vLLM 0.15)."""


def outside_of_page(page: PageTotals) -> Band | None:
    """Of the requests that a /metrics page counts; None without any.

    All three are counted when a request ends: while a queue grows, requests that begin wait longer than those
    that end did. vLLM takes in a request between two steps, so half a step of it is no time outside.
    """
    means = [_mean_s(page, name) for name in ("e2e", "queue", "inference")]
    if any(mean is None for mean in means):
        return None
    whole_s, queue_s, inference_s = (mean or 0.0 for mean in means)
    seconds = max(0.0, whole_s - queue_s - inference_s - (_mean_s(page, "itl") or 0.0) / 2)
    return Band(value=seconds, low=seconds, high=seconds)


def cached_share(page: PageTotals) -> float:
    """The share of all prompt tokens that a /metrics page counts as found in the prefix cache."""
    prompts = page.counters.get("prompt_tokens", 0.0)
    return min(1.0, page.counters.get("cached_tokens", 0.0) / prompts) if prompts else 0.0


def _mean_s(page: PageTotals, name: str) -> float | None:
    histogram = page.histograms.get(name)
    return histogram.sum / histogram.counts[-1] if histogram and histogram.counts[-1] else None
