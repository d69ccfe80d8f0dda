"""Where the time of late requests went, what the queue met, and what a request costs. Pure.

vLLM records queue, prefill and decode time when a request ends, so in a growing queue they are of the past:
the number of waiting requests over time (Little's law) counts beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from flettner.agent.domain.model import Objective
from flettner.agent.domain.reading import Buckets, EngineSample, Queue, TimeShares, Workload
from flettner.agent.domain.step_cost import DECODE_COST, RIDGE
from flettner.agent.observe.arrivals import Arrivals

BLOCK = 3  # scrapes: a prompt counts when it ends, and may have begun in the scrape before
LEAST_FIT = 8  # blocks of a busy engine
SURE = 3.0  # standard errors of the slope


@dataclass(frozen=True, slots=True)
class LateRequests:
    """Requests above one objective."""

    count: float
    mean_s: float  # of that latency
    duration_s: float | None  # mean of all ended requests, as their clients saw it


def summarize_queue(samples: Sequence[EngineSample]) -> Queue | None:
    """The state of the engine while requests waited; None if none did."""
    waiting = sum(sample.waiting for sample in samples)
    if waiting <= 0:
        return None
    usages = [(sample.kv_usage, sample.waiting) for sample in samples if sample.kv_usage is not None]
    starts = _total(sample.ttft for sample in samples)
    seconds = sum(sample.interval_s for sample in samples)
    return Queue(
        running=sum(sample.running * sample.waiting for sample in samples) / waiting,
        kv_usage=sum(usage * weight for usage, weight in usages) / waiting
        if len(usages) == len(samples)
        else None,
        wait_s=samples[-1].waiting / (max(starts, 0.5) / seconds) if seconds else 0.0,
    )


def summarize_work(samples: Sequence[EngineSample], arrivals: Sequence[Arrivals] | None) -> Workload:
    """What the requests of the window need."""
    seconds = sum(sample.interval_s for sample in samples)
    steps, starts = _total(sample.steps for sample in samples), _total(sample.ttft for sample in samples)
    computed = [_computed(sample) for sample in samples]
    tokens = sum(computed) + sum(sample.generation_tokens for sample in samples)
    prompt = sum(computed) / starts if starts else None
    prefill_s = _mean(sample.prefill for sample in samples)
    step_tokens = tokens / steps if steps else None
    token_s, decode_step_s = _cost_steps(samples, prompt, prefill_s, step_tokens)
    return Workload(
        arrivals_per_s=None
        if arrivals is None or not seconds
        else sum(arrival.count for arrival in arrivals) / seconds,
        prompt_tokens=prompt,
        answer_tokens=_mean(sample.answers for sample in samples),
        prefill_s=prefill_s,
        service_s=_mean(sample.inference for sample in samples),
        step_tokens=step_tokens,
        decode_step_s=decode_step_s,
        token_s=token_s,
    )


def count_overdue(samples: Sequence[EngineSample], work: Workload, objective: Objective | None) -> float:
    """Requests in the queue, first come first served, that are above the objective for the first token."""
    if objective is None or not samples or work.arrivals_per_s is None:
        return 0.0
    return max(0.0, samples[-1].waiting - work.arrivals_per_s * objective.under_s)


def share_ttft(samples: Sequence[EngineSample], late: LateRequests, overdue: float) -> TimeShares | None:
    """Shares of the time to the first token of late requests."""
    if not late.count:
        return TimeShares(queue=1.0) if overdue else None
    outside_s = min(_outside_s(samples, late.duration_s), late.mean_s)
    prefill_s = _mean(sample.prefill for sample in samples) or 0.0
    queue_s = min(max(0.0, late.mean_s - outside_s - prefill_s), _queued_s(samples) / late.count)
    prefill_s = max(0.0, late.mean_s - outside_s - queue_s)
    return _with_overdue(_shares(queue=queue_s, prefill=prefill_s, outside=outside_s), late.count, overdue)


def share_e2e(samples: Sequence[EngineSample], late: LateRequests, overdue: float) -> TimeShares | None:
    """Shares of the duration of late requests."""
    if not late.count:
        return TimeShares(queue=1.0) if overdue else None
    outside_s = min(_outside_s(samples, late.duration_s), late.mean_s)
    inference_s = _mean(sample.inference for sample in samples) or 0.0
    read_share = (_mean(sample.prefill for sample in samples) or 0.0) / inference_s if inference_s else 0.0
    queue_s = min(max(0.0, late.mean_s - outside_s - inference_s), _queued_s(samples) / late.count)
    engine_s = max(0.0, late.mean_s - outside_s - queue_s)
    prefill_s = min(1.0, read_share) * engine_s
    shares = _shares(queue=queue_s, prefill=prefill_s, decode=engine_s - prefill_s, outside=outside_s)
    return _with_overdue(shares, late.count, overdue)


def share_itl(
    samples: Sequence[EngineSample], late: LateRequests, work: Workload, objective: Objective
) -> TimeShares | None:
    """Shares of the gap between tokens that is above the objective.

    In bursts the requests meet larger batches than the mean of the window: their plain steps are longer.
    """
    if not late.count:
        return None
    excess_s = late.mean_s - objective.under_s
    decode_s, answers = _mean(sample.decode for sample in samples), work.answer_tokens
    engine_s = decode_s / (answers - 1) if decode_s and answers and answers > 1 else None
    prompts = sum(map(_computed, samples)) / max(1e-9, sum(sample.interval_s for sample in samples))
    busy = min(1.0, prompts * work.token_s) if work.token_s else 0.0
    plain_s = work.decode_step_s or (engine_s * (1 - busy) if engine_s else None)
    if plain_s is None or excess_s <= 0:
        return None
    plain_s += DECODE_COST * (work.token_s or 0.0) * _excess_batch(samples)
    decode = min(1.0, max(0.0, plain_s - objective.under_s) / excess_s)
    return TimeShares(decode=decode, prefill=1.0 - decode)


def _excess_batch(samples: Sequence[EngineSample]) -> float:
    """Sequences that run in the batch of a mean request, beyond those that run in the mean of the time."""
    running = [sample.running for sample in samples]
    total = sum(running)
    return sum(count * count for count in running) / total - total / len(running) if total else 0.0


def clumping(late: Iterable[tuple[float, bool]], span_s: float, bins: int = 10) -> float:
    """The design effect of late requests: Pearson's dispersion over tenths of the window, at least 1.

    `late`: when each request ended, in seconds, and whether it was late.
    """
    counts: dict[int, tuple[int, int]] = {}
    for at_s, bad in late:
        place = int(at_s / span_s * bins)
        of, worse = counts.get(place, (0, 0))
        counts[place] = of + 1, worse + bad
    share = sum(bad for _, bad in counts.values()) / max(1, sum(of for of, _ in counts.values()))
    if not 0 < share < 1 or len(counts) < bins // 2:
        return 1.0
    squares = sum((bad - of * share) ** 2 / of for of, bad in counts.values())
    return max(1.0, squares / (share * (1 - share)) / (len(counts) - 1))


def _cost_steps(
    samples: Sequence[EngineSample],
    prompt: float | None,
    prefill_s: float | None,
    step_tokens: float | None,
) -> tuple[float | None, float | None]:
    """What a prompt token adds to a step, and the duration of a step without a prompt.

    A busy engine fills each interval: 1 s = steps x a + prompt tokens x b. By least squares over the scrapes
    where the prompts vary enough to tell b, else from the prefill time. No token costs more than its share of
    the prefill time or of a mean step, which both contain the fixed part of a step.
    """
    busy = [
        (now.interval_s, _computed(now), now.steps.total)
        for before, now in pairwise(samples)
        if now.steps is not None and now.interval_s > 0 and min(before.running, now.running) > 0
    ]
    blocks = [busy[at : at + BLOCK] for at in range(0, len(busy) - BLOCK + 1, BLOCK)]
    sums = [[sum(column) for column in zip(*block, strict=True)] for block in blocks]
    points = [(prompts / seconds, steps / seconds) for seconds, prompts, steps in sums]
    shared_s = prefill_s / (prompt + RIDGE) if prompt and prefill_s else None
    if not points:
        return None if shared_s is None else min(shared_s, _most_per_token(samples)), None
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    token_s = _fit(points, mean_x, mean_y) or shared_s
    if token_s is None or mean_y <= 0:
        return token_s, None
    whole_s = prefill_s / prompt if prompt and prefill_s else token_s
    token_s = min(token_s, whole_s, 1 / mean_y / step_tokens if step_tokens else whole_s)
    # The fastest block had few prompts: a step without any takes at most its time, and at least half of it.
    slowest = mean_y / max(steps for _, steps in points)
    if mean_x > 0:
        token_s = min(max(token_s, (1 - slowest) / mean_x), (1 - slowest / 2) / mean_x)
    return token_s, (1 - token_s * mean_x) / mean_y


def _most_per_token(samples: Sequence[EngineSample]) -> float:
    """Seconds per token if the tokens of the samples took all of their time, as `find_load` weighs them.

    The prefill time of a request also contains other requests' tokens of the same steps. A preempted request
    is computed again, on average in the middle of its answer.
    """
    seconds, starts = sum(sample.interval_s for sample in samples), _total(sample.ttft for sample in samples)
    prompts, answers = sum(map(_computed, samples)), sum(sample.generation_tokens for sample in samples)
    again = sum(sample.preemptions for sample in samples) * (prompts + answers / 2) / max(1.0, starts)
    tokens = prompts + DECODE_COST * answers + again
    return seconds / tokens if tokens > 0 else inf


def _fit(points: Sequence[tuple[float, float]], mean_x: float, mean_y: float) -> float | None:
    """The seconds that a prompt token takes; None if the slope may be chance."""
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread <= 0 or len(points) < LEAST_FIT:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    free = mean_y - slope * mean_x
    rest = sum((y - free - slope * x) ** 2 for x, y in points) / (len(points) - 2)
    if slope >= 0 or free <= 0 or slope**2 < SURE**2 * rest / spread:
        return None
    return -slope / free


def _computed(sample: EngineSample) -> float:
    """Prompt tokens that were computed, not found in the prefix cache."""
    return max(0.0, sample.prompt_tokens - sample.cached_tokens)


def _queued_s(samples: Sequence[EngineSample]) -> float:
    """Seconds in the queue of all requests of the window: of those that ended, or of those present."""
    ended = sum(sample.queue.sum for sample in samples if sample.queue is not None)
    return max(ended, sum(sample.waiting * sample.interval_s for sample in samples))


def _outside_s(samples: Sequence[EngineSample], duration_s: float | None) -> float:
    """Mean seconds of a request that the engine does not account for."""
    queue_s, inference_s = (
        _mean(sample.queue for sample in samples),
        _mean(sample.inference for sample in samples),
    )
    if queue_s is None or inference_s is None or duration_s is None:
        return 0.0
    return max(0.0, duration_s - queue_s - inference_s)


def _shares(**seconds: float) -> TimeShares:
    total = sum(seconds.values())
    return TimeShares(**{name: value / total for name, value in seconds.items()}) if total else TimeShares()


def _with_overdue(shares: TimeShares, late: float, overdue: float) -> TimeShares:
    """Requests that still wait have only queued so far."""
    part = late / (late + overdue)
    return TimeShares(
        queue=shares.queue * part + 1 - part,
        prefill=shares.prefill * part,
        decode=shares.decode * part,
        outside=shares.outside * part,
    )


def _total(histograms: Iterable[Buckets | None]) -> float:
    return sum(histogram.total for histogram in histograms if histogram is not None)


def _mean(histograms: Iterable[Buckets | None]) -> float | None:
    present = [histogram for histogram in histograms if histogram is not None]
    total = sum(histogram.total for histogram in present)
    return sum(histogram.sum for histogram in present) / total if total else None
