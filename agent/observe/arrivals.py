"""The load of a window: arrivals in each scrape, and whether the window spans a change of it.

Only arrivals and prompts decide: a queue that grows under a constant load is evidence, not a change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import exp, log, sqrt

from flettner.agent.domain.reading import EngineSample

BINS = 10  # of a window; five in each half
LIKELY = 1e-3  # below it chance is no explanation
HALVES = 13.0  # squared difference over its variance; above 99.3 % of F(1, 8), as the variance is estimated
LENGTHS = 4.0  # standard errors between the mean prompts of the halves
LEAST_PROMPTS = 10  # in each half
IDLE_SHARE = 0.1  # of the window; a shorter idle beginning does not distort its means
BEGUN_S, BEGUN_REQUESTS = 10.0, 20.0  # a shorter or smaller load has no rate yet
ENOUGH = 30.0  # requests of a window; with fewer the window is longer, up to a limit


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that arrived between two scrapes; `at_s` from the start of the window to the second one."""

    at_s: float
    count: float


def count_arrivals(samples: Sequence[EngineSample], *, span_s: float) -> list[Arrivals] | None:
    """Arrivals between successive scrapes of one process; None if the server does not count finished ones."""
    if not samples or "request_success" in samples[-1].missing:
        return None
    end = samples[-1].at
    return [
        Arrivals(
            at_s=span_s - (end - now.at).total_seconds(),
            count=max(0.0, _arrived(before, now)),
        )
        for before, now in pairwise(samples)
        if now.interval_s > 0
    ]


def lasting_rate(samples: Sequence[EngineSample], *, least_s: float) -> float | None:
    """Arrivals per second over all samples, as far back as the server always had a request.

    At least over the last `least_s`, not beyond a restart. None if the server does not count finished ones.
    """
    if not samples or "request_success" in samples[-1].missing:
        return None
    arrived = seconds = 0.0
    for now, before in pairwise(reversed(samples)):
        if now.interval_s == 0 or (seconds >= least_s and _present(now) == 0):
            break
        arrived += _arrived(before, now)
        seconds += now.interval_s
    return max(0.0, arrived) / seconds if seconds else None


def begun_rate(samples: Sequence[EngineSample]) -> float | None:
    """Arrivals per second since the server last had no request; None while these are few, or just began."""
    rate = lasting_rate(samples, least_s=0.0)
    if not rate:
        return None
    idle_at = next((now.at for now in reversed(samples) if not now.interval_s or not _present(now)), None)
    lasted_s = (samples[-1].at - (idle_at or samples[0].at)).total_seconds()
    return rate if lasted_s >= BEGUN_S and lasted_s * rate >= BEGUN_REQUESTS else None


def choose_span(samples: Sequence[EngineSample], *, at: datetime, least_s: float, most_s: float) -> float:
    """The length of the window that ends at `at`: doubled until it holds ENOUGH requests.

    Not beyond an idle time, a restart or the first scrape: before them there is no evidence.
    """
    span_s = least_s
    recent = _within(samples, at, span_s)
    while recent and 2 * span_s <= most_s and _requests(recent) < ENOUGH:
        longer = _within(samples, at, 2 * span_s)
        begin_s = 2 * span_s - (at - longer[0].at).total_seconds() - longer[0].interval_s
        idle = not _requests(recent) or idle_beginning_s(longer, 2 * span_s) > IDLE_SHARE * 2 * span_s
        if idle or begin_s > IDLE_SHARE * span_s or any(sample.interval_s == 0 for sample in longer):
            break
        span_s, recent = 2 * span_s, longer
    return span_s


def _within(samples: Sequence[EngineSample], at: datetime, span_s: float) -> list[EngineSample]:
    begin = at - timedelta(seconds=span_s)
    return [sample for sample in samples if begin < sample.at <= at]


def _requests(samples: Sequence[EngineSample]) -> float:
    """Requests that ended, run or wait."""
    return _present(samples[-1]) + sum(sum(sample.finished.values()) for sample in samples)


def find_shift(samples: Sequence[EngineSample], arrivals: Sequence[Arrivals] | None, *, span_s: float) -> str:
    """Why the window is not stationary, as a sentence; empty if nothing speaks against it."""
    if any(sample.restarted for sample in samples[1:]):
        return f"the server restarted within the last {span_s:.0f} s"
    if any(sample.interval_s == 0 for sample in samples[1:]):
        return f"the metrics of the server were interrupted within the last {span_s:.0f} s"
    if arrivals is None or not sum(arrival.count for arrival in arrivals):
        return ""
    return (
        _idle_beginning(samples, arrivals, span_s)
        or _changed_rate(arrivals, span_s)
        or _changed_prompts(samples, span_s)
    )


def idle_beginning_s(samples: Sequence[EngineSample], span_s: float) -> float:
    """Seconds from the start of the window until a request was present."""
    end = samples[-1].at
    first = next(
        (sample for sample in samples if _present(sample) > 0 or sum(sample.finished.values()) > 0), None
    )
    return 0.0 if first is None else max(0.0, span_s - (end - first.at).total_seconds() - first.interval_s)


def _idle_beginning(samples: Sequence[EngineSample], arrivals: Sequence[Arrivals], span_s: float) -> str:
    """An idle beginning that is longer than a pause between arrivals may be."""
    idle_s = idle_beginning_s(samples, span_s)
    loaded = [arrival for arrival in arrivals if arrival.at_s > idle_s]
    if idle_s < IDLE_SHARE * span_s or idle_s >= span_s:
        return ""
    expected = sum(arrival.count for arrival in loaded) / (span_s - idle_s) * idle_s
    if exp(-expected / _dispersion([loaded], span_s)) > LIKELY:
        return ""
    return f"the load began {span_s - idle_s:.0f} s ago"


def _changed_rate(arrivals: Sequence[Arrivals], span_s: float) -> str:
    """Halves whose arrivals differ by more than their noise; bursts raise the noise."""
    halves = [
        [arrival for arrival in arrivals if (arrival.at_s > span_s / 2) is late] for late in (False, True)
    ]
    early, late = (sum(arrival.count for arrival in half) for half in halves)
    if (early - late) ** 2 <= HALVES * (early + late) * _dispersion(halves, span_s):
        return ""
    rates = " to ".join(f"{2 * count / span_s:.3g}" for count in (early, late))
    return f"the load changed within the last {span_s:.0f} s, from {rates} requests/s"


def _dispersion(parts: Sequence[Sequence[Arrivals]], span_s: float) -> float:
    """Variance over mean of the counts in a tenth of the window, within each part; at least 1 (Poisson)."""
    squares = freedom = total = bins = 0.0
    for part in parts:
        counts: dict[int, float] = {}
        for arrival in part:
            place = min(BINS - 1, int(arrival.at_s / span_s * BINS - 1e-9))
            counts[place] = counts.get(place, 0.0) + arrival.count
        mean = sum(counts.values()) / len(counts) if counts else 0.0
        squares += sum((count - mean) ** 2 for count in counts.values())
        freedom += max(0, len(counts) - 1)
        total += sum(counts.values())
        bins += len(counts)
    return max(1.0, squares / freedom / (total / bins)) if freedom and total else 1.0


def _changed_prompts(samples: Sequence[EngineSample], span_s: float) -> str:
    """Halves whose prompts differ in length by more than their noise (ratio estimate of the mean).

    Lengths are compared as they are counted: when a request gets its first token.
    """
    end = samples[-1].at
    halves: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for sample in samples:
        if sample.ttft is not None and sample.ttft.total > 0:
            late = (end - sample.at).total_seconds() < span_s / 2
            halves[late].append((sample.ttft.total, sample.prompt_tokens))
    means, errors = [], []
    for half in halves:
        requests = sum(count for count, _ in half)
        if requests < LEAST_PROMPTS:
            return ""
        mean = sum(tokens for _, tokens in half) / requests
        means.append(mean)
        errors.append(sum((tokens - mean * count) ** 2 for count, tokens in half) / requests**2)
    error = sqrt(sum(errors))
    if min(means) <= 0 or abs(means[1] - means[0]) <= max(LENGTHS * error, log(1.25) * min(means)):
        return ""
    return f"the prompts changed within the last {span_s:.0f} s, from {means[0]:.0f} to {means[1]:.0f} tokens"


def _arrived(before: EngineSample, now: EngineSample) -> float:
    """Requests between two scrapes; below 0 where some left without being counted as finished."""
    return _present(now) - _present(before) + sum(now.finished.values())


def _present(sample: EngineSample) -> float:
    return sample.running + sample.waiting
