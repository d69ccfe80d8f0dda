"""Goodput: the share of requests that meet every promised objective and do not fail. Is green's better?

A request is bad if it failed, stalled, missed an objective, or was abandoned by the client. Two comparisons:

    beside    green with blue's requests of the same seconds: the e-process of blue's share next to green's
              better  H0: green's bad share >= blue's            (margin 0)
              futile  H0: green's bad share <= blue's - GAIN
    baseline  green with the baseline: blue under full load, in the last minutes before the canary
              better  H0: green's bad share >= the baseline's lower bound (Wilson, counts over phi)
              futile  H0: green's bad share <= the baseline's - half of the least gain, where the other half
                      is for the baseline's own uncertainty; or <= its upper bound - the least gain, if less
              harm    H0: green's bad share <= the baseline's upper bound, or what the SLO allows, + twice the
                      margin of a stream of the baseline's share; requests at a higher rate do not count.
                      It rolls back a green with a longer queue where no latency can be compared

A canary relieves blue: next to a green with half of the load an overloaded blue recovers, and a green that
starts with an empty queue looks better than a blue that still drains one. So where the baseline misses the
SLO, a gain is shown against the baseline at the baseline's rate, after green had all traffic for BURN_IN_S:
an overload of 1 % needs that long to make a queue of three seconds. Evidence of futility counts at once,
because a server without a queue only looks better than it is.

The least gain worth a change is GAIN of the requests, or half of those that are bad if that is less.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import log, sqrt

from flettner.agent.domain.canary_evidence import (
    NO_COUNTS,
    CanaryEvidence,
    Counts,
    EProcessPair,
    GainBeside,
    GainOverBaseline,
    Goodput,
    HarmEvidence,
    Observation,
)
from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import (
    BUSIER,
    GAIN,
    LEAST_BASELINE,
    advancing_phi,
    allowed_share,
    baseline_interval,
    count_missed,
    goodput_phi,
    least_gain,
    misses_slo,
)
from flettner.agent.judge.canary.clients import sum_sides
from flettner.agent.judge.eprocess import log_sum, update_with_control, update_without_control

SURE_BETTER, SURE_FUTILE = log(100.0), log(50.0)
SURE_RELIEVED = log(20.0)
SURE_HARM = log(1000.0)  # in addition to the 1 in 100 of all streams
BURN_IN_S = 300.0


def buffer_goodput(goodput: Goodput, observation: Observation) -> Goodput:
    """Buffer the second's counts until the tick closes."""
    blue = [count_missed(arm) for arm in observation.blue.values()]
    now = Counts(sum(of for of, _ in blue), sum(bad for _, bad in blue), *count_missed(observation.green))
    servers = observation.arms
    groups = {
        group: sum_sides({server: count_missed(arm) for server, arm in arms.items() if server in servers})
        for group, arms in observation.clients.items()
    }
    new = {group: replace(goodput, without={}) for group, counts in groups.items() if any(counts)}
    without = {
        group: _buffer(other, now.minus(groups.get(group, NO_COUNTS)))
        for group, other in {**new, **goodput.without}.items()
    }
    return replace(_buffer(goodput, now), without=without)


def _buffer(goodput: Goodput, now: Counts) -> Goodput:
    return replace(goodput, pending=goodput.pending.plus(now), counted=goodput.counted.plus(now))


def close_goodput_tick(
    evidence: CanaryEvidence, step: Step, slo: Slo, baseline: RequestCounts, *, alone: bool
) -> Goodput:
    """Turn the tick's counts into evidence.

    Beside a blue that misses its SLO a proof leads to more traffic, not to the end: see advancing_phi.
    """
    if evidence.goodput.without:
        all_clients, *others = (
            close_goodput_tick(replace(evidence, goodput=goodput), step, slo, baseline, alone=alone)
            for goodput in (replace(evidence.goodput, without={}), *evidence.goodput.without.values())
        )
        return replace(all_clients, without=dict(zip(evidence.goodput.without, others, strict=True)))
    goodput, counts = evidence.goodput, evidence.goodput.pending
    phi, advancing = goodput_phi(evidence.calibration, slo), advancing_phi(evidence.calibration, slo)
    missed = misses_slo(evidence.calibration, slo, baseline)
    if not counts.green:
        return goodput
    beside = goodput.beside
    if counts.control:
        of_blue = update_with_control(
            beside.of_blue,
            (counts.green, counts.green_bad),
            (counts.control, counts.control_bad),
            margin=0.0,
            tolerance=GAIN,
            phi=advancing if missed else phi,
            at_s=evidence.valid_s,
            tick_s=evidence.tick_s,
        )
        beside = GainBeside(of_blue=of_blue)
    elif not alone:
        return goodput
    over = goodput.baseline
    if step.weight >= step.parity and missed:
        since = over.since_drained
        if since is None and 0 < evidence.drained_s < evidence.valid_s:
            since = EProcessPair()
        over = GainOverBaseline(
            of_green=_admitted(over.of_green, evidence, step, slo, baseline, alone=alone),
            since_drained=since and _admitted(since, evidence, step, slo, baseline, alone=alone),
        )
    harm = _harm(evidence, slo, baseline, phi) if alone and not evidence.draining else goodput.harm
    return replace(goodput, beside=beside, baseline=over, harm=harm, pending=NO_COUNTS)


def _harm(evidence: CanaryEvidence, slo: Slo, baseline: RequestCounts, phi: float) -> HarmEvidence:
    counts, harm = evidence.goodput.pending, evidence.goodput.harm
    total, missed = count_missed(baseline)
    if total < LEAST_BASELINE or compare_rate(evidence, baseline) > 0:
        return harm
    margin = max(evidence.margin, missed / total / 2)
    limit = min(max(baseline_interval(baseline, phi)[1], allowed_share(slo)) + margin, 0.98)
    of_green = update_without_control(
        harm.of_green,
        (counts.green, counts.green_bad),
        margin=margin,
        above=limit,
        tolerance=margin,
        below=limit,
        phi=phi,
        at_s=evidence.valid_s,
    )
    return HarmEvidence(of_green=of_green)


def _compare_with_baseline(
    pair: EProcessPair, evidence: CanaryEvidence, baseline: RequestCounts, phi: float
) -> EProcessPair:
    """Test green's share: above one limit there is no gain, below another one green is better."""
    counts, gain = evidence.goodput.pending, least_gain(baseline)
    low, high = baseline_interval(baseline, phi)
    total, missed = count_missed(baseline)
    return update_without_control(
        pair,
        (counts.green, counts.green_bad),
        margin=gain,
        above=min(max(min(missed / total - gain / 2, high - gain), 0.01), 0.98),
        tolerance=gain,
        below=min(max(low, 0.01), 0.98),
        phi=phi,
        at_s=evidence.valid_s,
    )


def _admitted(
    old: EProcessPair,
    evidence: CanaryEvidence,
    step: Step,
    slo: Slo,
    baseline: RequestCounts,
    *,
    alone: bool,
) -> EProcessPair:
    """The evidence that the present load allows.

    With more requests than the baseline, or beside a blue that drains, only a gain counts; with fewer, or
    before a queue had time to grow, only futility.
    """
    better = futile = _compare_with_baseline(
        old, evidence, baseline, advancing_phi(evidence.calibration, slo)
    )
    if alone:
        better = _compare_with_baseline(old, evidence, baseline, goodput_phi(evidence.calibration, slo))
    rate = compare_rate(evidence, baseline) if alone else 0
    pair = old if rate > 0 or evidence.draining else futile
    too_early = alone and (rate < 0 or evidence.valid_s <= burn_in_s(step))
    return pair.with_below_of(old if too_early else better)


def burn_in_s(step: Step) -> float:
    """Seconds of all traffic that do not count for green: half of a short step."""
    return min(BURN_IN_S, step.at_least_s / 2)


def compare_rate(evidence: CanaryEvidence, baseline: RequestCounts) -> int:
    """-1: green gets fewer requests than the baseline had, 1: more; 0: as many, within two errors."""
    if not evidence.baseline_s or not evidence.asked_s:
        return 0
    error = 2 * sqrt(baseline.asked)
    now = evidence.asked[1] / evidence.asked_s
    spread = 2 * sqrt(evidence.asked[1]) / evidence.asked_s
    if now + spread < (baseline.asked - error) / evidence.baseline_s:
        return -1
    return 1 if now > BUSIER * (baseline.asked + error) / evidence.baseline_s else 0


def log_futile(evidence: CanaryEvidence, slo: Slo) -> float:
    """Evidence that green is not better than a healthy blue by GAIN in the same seconds; advancing phi."""
    times = goodput_phi(evidence.calibration, slo) / advancing_phi(evidence.calibration, slo)
    return min(
        log_sum([times * value for value in goodput.beside.no_gain]) - log(3)
        for goodput in all_of(evidence.goodput)
    )


def all_of(goodput: Goodput) -> Iterator[Goodput]:
    """The evidence of all clients, and those without one group: the smallest counts."""
    yield goodput
    yield from goodput.without.values()


def log_better(evidence: CanaryEvidence) -> float:
    """Evidence that green is better than blue in the same seconds."""
    effect = max((stream.effect for stream in evidence.streams), default=1.0)
    return min(goodput.beside.log_better for goodput in all_of(evidence.goodput)) / effect


def log_harm(goodput: Goodput) -> float:
    """Evidence that a green that serves alone is worse than the baseline."""
    return min(every.harm.log_harm for every in all_of(goodput))


def log_no_gain(goodput: Goodput) -> float:
    """Evidence that green is not better than the baseline by the least gain."""
    return min(every.baseline.log_no_gain for every in all_of(goodput))


def most_better(goodput: Goodput) -> float:
    """The maximum of this step of the evidence that green is better than the baseline."""
    return min(every.baseline.most_better for every in all_of(goodput))


def log_better_than_baseline(goodput: Goodput) -> float:
    """Evidence now, not its maximum: a queue may still grow. The mean over alternatives and beginnings."""
    every = [[value for below in part.baseline.better for value in below] for part in all_of(goodput)]
    return min(log_sum(logs) - log(len(logs)) for logs in every)


def describe_missed(counts: Counts) -> str:
    """As in "green missed the SLO with 3 of 1,411 requests, blue with 1,463 of 1,463"."""
    blue = f", blue with {counts.control_bad:,} of {counts.control:,}" if counts.control else ""
    return f"green failed or missed the SLO with {counts.green_bad:,} of {counts.green:,} requests{blue}"


def describe_baseline(evidence: CanaryEvidence, baseline: RequestCounts) -> str:
    """As in "blue's baseline with 312 of 312 at 4.9 requests/s"."""
    of, bad = count_missed(baseline)
    rate = f" at {baseline.asked / evidence.baseline_s:.3g} requests/s" if evidence.baseline_s else ""
    return f"blue's baseline with {bad:,} of {of:,}{rate}"
