"""What two pages of a server tell of its requests' lengths and its drafts, where no Prometheus is asked."""

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from math import inf

ENOUGH = 20  # requests; with fewer between two pages, all since the server's start are counted
_NUMBER = rb"(\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)"
_LENGTHS = {"prompt": b"request_prompt_tokens", "answer": b"request_generation_tokens"}
_BUCKET = rb'^vllm:%s_bucket\{[^}\n]{0,500}?le="([^"\n]{1,30})"[^}\n]{0,500}\} %s$'
_DRAFT = rb"^vllm:spec_decode_num_%s_tokens_total(?:\{[^}\n]{0,500}\})? %s$"
_BUCKETS = {name: re.compile(_BUCKET % (metric, _NUMBER), re.MULTILINE) for name, metric in _LENGTHS.items()}
_DRAFTS = {name: re.compile(_DRAFT % (name, _NUMBER), re.MULTILINE) for name in (b"draft", b"accepted")}


def series(first: bytes, last: bytes) -> dict[str, float]:
    """Tokens at the quantiles of what ended between the pages, and the share of drafts that was accepted.

    By the names of the policies' options; what cannot be told is left out.
    """
    found: dict[str, float] = {}
    counted = {name: _between(_cumulative(name, first), _cumulative(name, last)) for name in _LENGTHS}
    p50, p99 = _quantile(counted["prompt"], 0.5), _quantile(counted["prompt"], 0.99)
    if p50 is not None and p99 is not None:
        found |= {"prompt_tokens_p50": p50, "prompt_tokens_p99": p99}
        answer = _quantile(counted["answer"], 0.99)
        found |= {} if answer is None else {"request_tokens_p99": p99 + answer}
    drafted, accepted = (_total(name, last) - _total(name, first) for name in _DRAFTS)
    if drafted > 0 <= accepted:
        found["spec_acceptance_ratio"] = min(1.0, accepted / drafted)
    return found


def _cumulative(name: str, page: bytes) -> Mapping[float, float]:
    """By upper edge, of all engines together."""
    counts: dict[float, float] = defaultdict(float)
    for edge, count in _BUCKETS[name].findall(page):
        try:
            counts[inf if edge == b"+Inf" else float(edge)] += float(count)
        except ValueError:
            continue
    return counts


def _between(first: Mapping[float, float], last: Mapping[float, float]) -> Mapping[float, float]:
    grown = {edge: count - first.get(edge, 0.0) for edge, count in last.items()}
    return grown if first.keys() == last.keys() and grown.get(inf, 0.0) >= ENOUGH else last


def _quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Interpolated in its bucket; the last edge stands for all above it. None: too few, or no histogram."""
    wanted, edges = share * counts.get(inf, 0.0), sorted(counts)
    if counts.get(inf, 0.0) < ENOUGH:
        return None
    for lower, upper in pairwise((0.0, *edges)):
        below, within = counts.get(lower, 0.0), counts[upper]
        if within >= wanted:
            return lower if upper == inf else lower + (upper - lower) * (wanted - below) / (within - below)
    return None


def _total(name: bytes, page: bytes) -> float:
    return sum(float(count) for count in _DRAFTS[name].findall(page))
