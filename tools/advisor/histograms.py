"""Request lengths from two /metrics pages, where no Prometheus is available."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from math import inf

from flettner.primitives.quantiles import histogram_quantile
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.exposition import SampleRow, parse_bucket, pick_samples

ENOUGH = 20  # requests; with fewer between the pages, all requests since the server's start are counted
_PROMPT, _ANSWER = "vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"
_METRICS = frozenset({_PROMPT, _ANSWER})

_Rows = Mapping[str, list[SampleRow]]
_Buckets = Mapping[float, float]
"""Cumulative counts of all engines by upper edge."""


def series(first: bytes, last: bytes) -> dict[str, float]:
    """Return quantiles of the tokens of requests that ended between the pages.

    The keys are the names of the policies' options; unknown values are absent.
    """
    try:
        before, after = (pick_samples(page.decode(errors="replace"), _METRICS) for page in (first, last))
        prompt, answer = (
            _new_requests(_buckets(name, before), _buckets(name, after)) for name in (_PROMPT, _ANSWER)
        )
    except MetricsPageError:
        return {}
    quantiles: dict[str, float] = {}
    p50, p99 = _quantile(prompt, 0.5), _quantile(prompt, 0.99)
    if p50 is not None and p99 is not None:
        quantiles |= {"prompt_tokens_p50": p50, "prompt_tokens_p99": p99}
        answer_p99 = _quantile(answer, 0.99)
        quantiles |= {} if answer_p99 is None else {"request_tokens_p99": p99 + answer_p99}
    return quantiles


def _buckets(name: str, rows: _Rows) -> _Buckets:
    counts: dict[float, float] = defaultdict(float)
    for inside, count in rows.get(name, ()):
        counts[parse_bucket(inside)[0]] += count
    return counts


def _new_requests(first: _Buckets, last: _Buckets) -> _Buckets:
    grown = {edge: count - first.get(edge, 0.0) for edge, count in last.items()}
    return grown if first.keys() == last.keys() and grown.get(inf, 0.0) >= ENOUGH else last


def _quantile(counts: _Buckets, share: float) -> float | None:
    """Return the quantile; None if there are too few requests."""
    *edges, last = sorted(counts) or (inf,)
    if last != inf or not edges or counts.get(inf, 0.0) < ENOUGH:
        return None
    per_bucket = [high - low for low, high in pairwise((0.0, *(counts[edge] for edge in (*edges, inf))))]
    return histogram_quantile(edges, per_bucket, share)
