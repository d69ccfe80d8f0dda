"""What engine steps did together over some seconds: the rows that a law of step time is fitted to.

Single steps are no rows: under async scheduling vLLM's times of two steps in a row alternate (0.85 and 10.9
ms on the CPU build of 0.32). So a row ends between two steps without prompts, where it does not matter to
which of both a time belongs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from flettner.performance_model.iteration_log import StepRecord
from flettner.performance_model.step_law import counted_tokens
from flettner.vllm_facts.metrics.page_totals import HistogramTotals, PageTotals

LEAST_STEPS, MOST_STEPS = 4, 30  # of a row; few, so that a chunk of a prompt stands out


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkWindow:
    """Sums over the steps of a window in which the engine never idled."""

    seconds: float
    steps: float
    sizes: tuple[tuple[float, float], ...]  # tokens of a step, and how many steps had so many
    sequences: float
    kv_read: float  # tokens of KV cache that decoding read
    attention: float = 0.0  # pairs of prompt token and token that it attends to, where known

    def excess(self, knee: float, launch_tokens: float = 0.0) -> float:
        """Tokens above the knee, summed over the steps; `launch_tokens` as in `step_law.StepLaw`."""
        return sum(
            count * max(0.0, counted_tokens(tokens, launch_tokens) - knee) for tokens, count in self.sizes
        )


def windows_of_steps(records: Iterable[StepRecord], kv_tokens: int) -> Iterator[WorkWindow]:
    """Windows of recorded steps; `kv_tokens`: the capacity of the KV cache."""
    return (window for _, window in timed_windows(((0.0, record) for record in records), kv_tokens))


def timed_windows(
    records: Iterable[tuple[float, StepRecord]], kv_tokens: int
) -> Iterator[tuple[float, WorkWindow]]:
    """The same for steps with their times: each window with the time of its last step."""
    batch: list[StepRecord] = []
    areas: list[float] = []
    context = 0.0  # computed tokens of the prompt that is in progress
    largest = 0
    for at_s, record in records:
        largest = max(largest, record.tokens)
        areas.append(_attention(record, context))
        in_progress = record.prefills > 0 and record.tokens == largest  # it filled the budget
        context = (context if record.prefills == 1 else 0.0) + record.prefill_tokens if in_progress else 0.0
        batch.append(record)
        is_quiet = len(batch) > 1 and not batch[-1].prefills and not batch[-2].prefills
        if (is_quiet and len(batch) >= LEAST_STEPS) or len(batch) == MOST_STEPS:
            yield at_s, sum_steps(batch, kv_tokens, sum(areas))
            batch, areas = [], []


def window_between(before: PageTotals, after: PageTotals, seconds: float, budget: int) -> WorkWindow | None:
    """The window between two /metrics pages; requests must run throughout. None without what it needs.

    vLLM counts all tokens of a prompt in the step that computes its last one (vllm:iteration_tokens_total),
    so a size above `budget` (max_num_batched_tokens) was several steps.
    """
    steps = _difference(before, after, "steps")
    prompts, answers = _difference(before, after, "prompts"), _difference(before, after, "answers")
    capacity = _kv_tokens(after)
    if steps is None or not sum(steps.counts) or capacity is None:
        return None
    generated = after.counters.get("generation_tokens", 0.0) - before.counters.get("generation_tokens", 0.0)
    prefilled = max(sum(part.counts) for part in (prompts, answers)) if prompts and answers else 0.0
    usage = (before.gauges.get("kv_usage", 0.0) + after.gauges.get("kv_usage", 0.0)) / 2
    sequences = generated + prefilled
    return window_of_counts(
        steps, seconds=seconds, sequences=sequences, kv_tokens=usage * capacity, budget=budget
    )


def window_of_counts(
    steps: HistogramTotals, *, seconds: float, sequences: float, kv_tokens: float, budget: float
) -> WorkWindow:
    """`steps`: tokens of the steps that a window counted, by bucket. `kv_tokens`: held on average."""
    sizes: list[tuple[float, float]] = []
    for size, count in _place_in_buckets(steps):
        parts = max(1, ceil(size / budget))
        sizes.append((size / parts, count * parts))
    return WorkWindow(
        seconds=seconds,
        steps=sum(steps.counts),
        sizes=tuple(sizes),
        sequences=sequences,
        kv_read=kv_tokens * sum(steps.counts),
    )


def _difference(before: PageTotals, after: PageTotals, name: str) -> HistogramTotals | None:
    """What a histogram counted between the pages, by bucket (not cumulative)."""
    then, now = before.histograms.get(name), after.histograms.get(name)
    if then is None or now is None or then.edges != now.edges:
        return None
    cumulative = [late - early for late, early in zip(now.counts, then.counts, strict=True)]
    counts = tuple(upper - lower for upper, lower in zip(cumulative, (0.0, *cumulative[:-1]), strict=True))
    return None if min(counts) < 0 else HistogramTotals(now.edges, counts, now.sum - then.sum)


def _kv_tokens(page: PageTotals) -> int | None:
    try:
        return int(page.facts["num_gpu_blocks"]) * int(page.facts["block_size"])
    except (KeyError, ValueError):
        return None


def _attention(record: StepRecord, context: float) -> float:
    """An estimate, as a log has no lengths of prompts: one goes on from `context`, the others are equal."""
    if not record.prefills:
        return 0.0
    each = record.prefill_tokens / record.prefills
    return record.prefill_tokens * each / 2 + each * context


def with_kv_read(windows: Sequence[WorkWindow], context: float) -> Sequence[WorkWindow]:
    """With `context` tokens for each sequence, where the log does not show the KV cache's use (vLLM 0.25)."""
    if any(window.kv_read for window in windows):
        return windows
    return [replace(window, kv_read=context * window.sequences) for window in windows]


def sum_steps(batch: Sequence[StepRecord], kv_tokens: int, attention: float | None = None) -> WorkWindow:
    """The window of these steps. `attention`: where it is known how their prompts are divided.

    The tokens that decoding reads are those in use less those of the prompts that are being computed.
    """
    sizes = Counter(record.tokens for record in batch)
    read = (
        max(0.0, (record.kv_share or 0.0) * kv_tokens - record.prefill_tokens) if record.decodes else 0.0
        for record in batch
    )
    return WorkWindow(
        seconds=sum(record.seconds for record in batch),
        steps=len(batch),
        sizes=tuple((float(size), float(count)) for size, count in sizes.items()),
        sequences=sum(record.sequences for record in batch),
        kv_read=sum(read),
        attention=sum(_attention(record, 0.0) for record in batch) if attention is None else attention,
    )


def _place_in_buckets(histogram: HistogramTotals) -> Iterator[tuple[float, float]]:
    """A size for each bucket, at the same fraction of its width in all, so that they add up to the sum."""
    edges, counts, total = histogram.edges, histogram.counts, histogram.sum
    lows = (0.0, *edges[:-1])
    highs = [low * 2 if edge == inf else edge for low, edge in zip(lows, edges, strict=True)]
    least = sum(count * low for count, low in zip(counts, lows, strict=True))
    most = sum(count * high for count, high in zip(counts, highs, strict=True))
    share = min(1.0, max(0.0, (total - least) / (most - least))) if most > least else 0.0
    for low, high, count in zip(lows, highs, counts, strict=True):
        if count > 0:
            yield low + share * (high - low), count
