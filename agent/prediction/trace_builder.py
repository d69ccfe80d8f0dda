"""Builds the trace of a target's load from what was recorded of it."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from random import Random

from flettner.agent.domain.reading import Buckets
from flettner.agent.prediction.learned import TokenCounts
from flettner.agent.prediction.recording import Recording, RequestColumns, sum_minutes
from flettner.performance_model.packed_trace import PackedTrace
from flettner.primitives.quantiles import quantile

LEAST_RECORDED = 0.8  # of the requests that vLLM counted; with fewer, clients go past the proxy
LONGEST_LAG_S = 120.0
MOST_TOKENS_PER_CHUNK = 16.0  # stream_interval joins tokens into one chunk
LEAST_KNOWN_CHUNKS = 0.9  # share of requests whose chunks are known, to compare their mean with vLLM's


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoad:
    """`begin_s`: Unix time of the trace's 0. `end_s`: until when it is complete, on its own clock."""

    trace: PackedTrace
    begin_s: float
    end_s: float
    counts_from: TokenCounts


def build_load(recording: Recording, *, servers: int = 1) -> RecordedLoad:
    """The share of one of `servers` equal servers. Empty without vLLM's histograms of lengths."""
    minutes, requests = recording.minutes, recording.requests
    sums = sum_minutes(minutes)
    if sums.prompts is None or sums.answers is None:
        return RecordedLoad(trace=PackedTrace(), begin_s=0.0, end_s=0.0, counts_from="histograms")
    begin_s, until_s = minutes[0].begin_s, minutes[-1].end_s
    recorded = len(requests) - bisect_left(requests.ended_s, begin_s)
    counts_from: TokenCounts = "records" if recorded >= LEAST_RECORDED * sums.finished else "histograms"
    random = Random("trace:0")  # noqa: S311 - reproducible draws
    if counts_from == "records":
        until_s -= _lag_s(requests)
        inside = [at for at, begun_s in enumerate(requests.begun_s) if begin_s <= begun_s < until_s]
        inside.sort(key=lambda at: requests.begun_s[at])
        arrivals_s = [requests.begun_s[at] for at in inside]
        prompts = prompt_lengths([requests.sizes[at] for at in inside], sums.prompts, random)
        outputs = output_lengths([requests.outputs[at] for at in inside], sums.answers, random)
    else:
        arrivals_s = sorted(at_s for minute in minutes for at_s in minute.arrivals_s)
        prompts = draw_lengths(sums.prompts, len(arrivals_s), random)
        outputs = draw_lengths(sums.answers, len(arrivals_s), random)
    share = min(1.0, sums.cached_tokens / sums.prompt_tokens) if sums.prompt_tokens else 0.0
    trace = PackedTrace(
        arrivals_s=array("d", (at_s - begin_s for at_s in arrivals_s)),
        prompts=prompts,
        outputs=outputs,
        cached=array("I", (int(share * tokens) for tokens in prompts)),  # known over all requests only
    )
    return RecordedLoad(
        trace=trace[::servers], begin_s=begin_s, end_s=max(0.0, until_s - begin_s), counts_from=counts_from
    )


def draw_lengths(histogram: Buckets, count: int, random: Random) -> "array[int]":
    """`count` lengths with the histogram's shares and mean: stratified, in random order.

    Inside a bucket, (low, high], they are low + (high - low) * v^g with uniform v; the mean of v^g is
    1 / (1 + g).
    """
    highs = [*histogram.edges, 2 * histogram.edges[-1]]
    lows = [0.0, *histogram.edges]
    least = sum(number * low for number, low in zip(histogram.counts, lows, strict=True))
    most = sum(number * high for number, high in zip(histogram.counts, highs, strict=True))
    share = min(0.98, max(0.02, (histogram.sum - least) / (most - least)))
    power = 1 / share - 1
    upto = list(accumulate(histogram.counts))
    drawn = array("I")
    for place in range(count):
        bucket = bisect_left(upto, (place + random.random()) / count * upto[-1])
        low, high = lows[bucket], highs[bucket]
        drawn.append(max(1, round(low + (high - low) * random.random() ** power)))
    random.shuffle(drawn)
    return drawn


def prompt_lengths(sizes: Sequence[int], histogram: Buckets, random: Random) -> "array[int]":
    """Tokens of prompts, by the bytes of the requests.

    The k-th smallest request has the k-th smallest prompt. Inside its bucket of vLLM's histogram its length
    follows its bytes, at the mean number of tokens for a byte. Without its bytes a length is drawn.
    """
    lengths = draw_lengths(histogram, len(sizes), random)
    measured = sorted((at for at, size in enumerate(sizes) if size > 0), key=lambda at: sizes[at])
    if not measured:
        return lengths
    mean_size = sum(sizes[at] for at in measured) / len(measured)
    tokens_per_byte = histogram.sum / histogram.total / mean_size
    highs, lows = [*histogram.edges, inf], [0.0, *histogram.edges]
    upto = list(accumulate(histogram.counts))
    for rank, at in enumerate(measured):
        bucket = bisect_left(upto, (rank + 0.5) / len(measured) * upto[-1])
        tokens = min(max(sizes[at] * tokens_per_byte, lows[bucket] + 1), highs[bucket])
        lengths[at] = max(1, round(tokens))
    return lengths


def output_lengths(chunks: Sequence[int], histogram: Buckets, random: Random) -> "array[int]":
    """Of streamed answers their chunks, scaled to vLLM's mean; of others a draw."""
    drawn = draw_lengths(histogram, len(chunks), random)
    counts = [count for count in chunks if count > 0]
    scale = 1.0
    if counts and len(counts) >= LEAST_KNOWN_CHUNKS * len(chunks):
        scale = histogram.sum / histogram.total / (sum(counts) / len(counts))
    scale = min(max(scale, 1 / MOST_TOKENS_PER_CHUNK), MOST_TOKENS_PER_CHUNK)
    return array(
        "I",
        (
            max(1, round(count * scale)) if count > 0 else other
            for count, other in zip(chunks, drawn, strict=True)
        ),
    )


def _lag_s(requests: RequestColumns) -> float:
    """Requests that began later than so long ago may still run, and are not recorded yet."""
    took_s = sorted(
        ended_s - begun_s for ended_s, begun_s in zip(requests.ended_s, requests.begun_s, strict=True)
    )
    return min(LONGEST_LAG_S, max(1.0, quantile(took_s, 0.99))) if took_s else 0.0
