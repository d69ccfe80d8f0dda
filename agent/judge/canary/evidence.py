"""Group seconds into ticks, and update the evidence of each stream with each closed tick."""

from collections.abc import Mapping
from dataclasses import replace
from math import log

from flettner.agent.domain.canary_evidence import (
    NO_COUNTS,
    CanaryEvidence,
    EProcessPair,
    EvidenceStream,
    Observation,
)
from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts, quantile
from flettner.agent.judge.attainment import wilson_interval
from flettner.agent.judge.canary.admissibility import Inadmissible
from flettner.agent.judge.canary.clients import (
    ALL,
    OfBad,
    count_by_group,
    left_out,
    log_worse,
    set_group_aside,
    sum_sides,
)
from flettner.agent.judge.canary.goodput import buffer_goodput, close_goodput_tick
from flettner.agent.judge.eprocess import log_sum, update_with_control, update_without_control
from flettner.agent.judge.failure_modes import (
    ANSWERS,
    calibration_of,
    count_bad,
    phi_of,
    stream_names,
    tick_margin,
    tick_phi_of,
)

FULL_WEIGHT = 100  # at which blue has no traffic
TICK_S, TICK_REQUESTS, TICK_AT_MOST_S = 5.0, 5, 15.0
AT_ONCE = 20  # requests of each side that close a tick early
WIDE_S, WIDE_REQUESTS = 15.0, 5  # of a server's tick, as CalibrationWindow counts them
SETTLE_AT_MOST_S, OWN_LEAST = 60.0, 5


def add_observation(
    evidence: CanaryEvidence,
    observation: Observation,
    *,
    step: Step,
    slo: Slo,
    green: RequestCounts,
    baseline: RequestCounts,
    hold: Inadmissible,
) -> CanaryEvidence:
    """Add one admissible second to the evidence. `green`: counts of the step."""
    if evidence.settled_s < min(settling_s(baseline), own_settling_s(green)):
        return replace(evidence, settled_s=evidence.settled_s + 1.0)
    alone = step.weight >= FULL_WEIGHT
    if (evidence.against, evidence.draining) != (not hold.busier, hold.draining):
        evidence = _close_ticks(evidence, step, slo, baseline)
        evidence = replace(evidence, against=not hold.busier, draining=hold.draining)
    only_green = replace(observation, blue={}) if alone else observation  # blue's are of another load
    evidence = replace(
        evidence,
        streams=tuple(
            stream
            if hold.latency and stream.name not in ANSWERS
            else buffer_counts(
                stream,
                observation if stream.name in ANSWERS else only_green,
                slo,
                against=_counts_against_green(evidence, stream),
                alone=alone,
            )
            for stream in evidence.streams
        ),
        goodput=evidence.goodput if hold.latency else buffer_goodput(evidence.goodput, only_green),
        tick_s=evidence.tick_s + 1.0,
        drained_s=evidence.drained_s + (alone and not hold.draining),
        wide_s=evidence.wide_s + 1.0,
        valid_s=evidence.valid_s + 1.0,
        all_s=evidence.all_s + 1.0,
    )
    if evidence.wide_s >= WIDE_S:
        evidence = replace(
            evidence, streams=tuple(close_wide_tick(s, evidence) for s in evidence.streams), wide_s=0.0
        )
    if _is_tick_due(evidence):
        evidence = _close_ticks(evidence, step, slo, baseline)
    return replace(evidence, streams=tuple(set_group_aside(stream) for stream in evidence.streams))


def _close_ticks(evidence: CanaryEvidence, step: Step, slo: Slo, baseline: RequestCounts) -> CanaryEvidence:
    closed = tuple(
        close_tick(stream, evidence, step, slo, baseline, against=_counts_against_green(evidence, stream))
        for stream in evidence.streams
    )
    goodput = close_goodput_tick(evidence, step, slo, baseline, alone=step.weight >= FULL_WEIGHT)
    return replace(evidence, streams=closed, goodput=goodput, tick_s=0.0)


def _counts_against_green(evidence: CanaryEvidence, stream: EvidenceStream) -> bool:
    """Whether this stream's bad requests in the open tick count against green."""
    return evidence.against or stream.name in ANSWERS


def settling_s(baseline: RequestCounts) -> float:
    """Seconds until nine of ten requests end; earlier, only quick and failed ones have ended."""
    return min(quantile(baseline.e2e, 0.9) or 0.0, SETTLE_AT_MOST_S)


def own_settling_s(green: RequestCounts) -> float:
    """Seconds until nine of ten of green's requests end, by those that ended.

    Quick ones end first, so the quantile is at most the time that has passed: twice it is needed. A blue that
    queues for a minute does not make green's step wait for that long.
    """
    is_measured = sum(green.e2e) >= OWN_LEAST
    return 2 * (quantile(green.e2e, 0.9) or 0.0) if is_measured else SETTLE_AT_MOST_S


def log_mean(evidence: CanaryEvidence, slo: Slo) -> float:
    """The logarithm of the mean over all possible streams; one that is not open yet counts as 1."""
    every = len(stream_names(slo))
    logs = [log_worse(stream) for stream in evidence.streams]
    closed = every - len(logs)
    return log_sum([*logs, log(closed)] if closed > 0 else logs) - log(max(every, len(logs)))


def buffer_counts(
    stream: EvidenceStream, observation: Observation, slo: Slo, *, against: bool, alone: bool = False
) -> EvidenceStream:
    """Buffer the second's counts until their ticks close. `against`: the hard limits count them."""
    groups = count_by_group(stream, observation, slo, alone=alone)
    aside = groups.pop(stream.set_aside, {}) if stream.set_aside else {}
    arms = left_out(groups.pop(ALL), aside)
    new = {
        group: replace(stream, without={}, clients={})
        for group, of in groups.items()
        if any(map(any, of.values()))
    }
    without = {
        group: _buffer(other, left_out(arms, groups.get(group, {})), against=against)
        for group, other in {**new, **stream.without}.items()
    }
    return replace(_buffer(stream, arms, against=against), without=without)


def _buffer(stream: EvidenceStream, arms: Mapping[str, OfBad], *, against: bool) -> EvidenceStream:
    wide, now = dict(stream.wide), sum_sides(arms)
    for server, (of, bad) in arms.items():
        was_of, was_bad = wide.get(server, (0, 0))
        if of and against:
            wide[server] = (was_of + of, was_bad + bad)
    return replace(
        stream,
        pending=stream.pending.plus(now),
        counted=stream.counted.plus(now) if against else stream.counted,
        wide=wide if stream.ticks else {},
    )


def _is_tick_due(evidence: CanaryEvidence) -> bool:
    """Decided by time and numbers of requests only, never by their outcomes."""
    counts = evidence.streams[0].pending
    of = min(counts.control or counts.green, counts.green)
    enough = of >= TICK_REQUESTS if evidence.tick_s >= TICK_S else of >= AT_ONCE
    return enough or evidence.tick_s >= TICK_AT_MOST_S


def close_tick(
    stream: EvidenceStream,
    evidence: CanaryEvidence,
    step: Step,
    slo: Slo,
    baseline: RequestCounts,
    *,
    against: bool,
) -> EvidenceStream:
    """Turn the tick's counts into evidence; without requests of one side they wait for the next tick.

    `against`: bad requests count too, not only their absence.
    """
    if stream.without:
        without = {
            group: close_tick(other, evidence, step, slo, baseline, against=against)
            for group, other in stream.without.items()
        }
        all_clients = close_tick(replace(stream, without={}), evidence, step, slo, baseline, against=against)
        return replace(all_clients, without=without)
    counts = stream.pending
    phi = phi_of(calibration_of(evidence.calibration, stream.name, slo))
    if counts.control and counts.green:
        requests = update_with_control(
            stream.requests,
            (counts.control, counts.control_bad),
            (counts.green, counts.green_bad),
            margin=stream.margin,
            tolerance=stream.tolerance,
            phi=phi,
            at_s=evidence.all_s,
            tick_s=evidence.tick_s,
        )
        if not against:
            requests = stream.requests.with_below_of(requests)
        return replace(stream, requests=requests, pending=NO_COUNTS)
    if counts.green and step.weight >= FULL_WEIGHT:
        pair = _compare_with_baseline(stream, evidence, slo, baseline, phi)
        if not against:
            pair = stream.requests.with_below_of(pair)
        return replace(stream, requests=pair, pending=NO_COUNTS)
    return stream


def _compare_with_baseline(
    stream: EvidenceStream, evidence: CanaryEvidence, slo: Slo, baseline: RequestCounts, phi: float
) -> EProcessPair:
    above, below, tolerance = limits_of_baseline(
        stream, evidence, slo, baseline, phi, tolerance=stream.tolerance
    )
    return update_without_control(
        stream.requests,
        (stream.pending.green, stream.pending.green_bad),
        margin=2 * stream.margin,  # the alternatives stay as many as before
        above=above,
        tolerance=2 * tolerance,
        below=below,
        phi=phi,
        at_s=evidence.all_s,
    )


def limits_of_baseline(
    stream: EvidenceStream,
    evidence: CanaryEvidence,
    slo: Slo,
    baseline: RequestCounts,
    phi: float,
    *,
    tolerance: float,
) -> tuple[float, float, float]:
    """(above, below, tolerance): green's share above which it is worse, and below which it is not.

    They exceed blue's earlier baseline by twice the margins, beyond the baseline's own uncertainty.
    """
    of, bad = count_bad(baseline, stream.name, stream.edge_s, slo, alone=True)
    low, high = wilson_interval(round(bad / phi), round(of / phi)) or (stream.usual, stream.usual)
    promised, margin = stream.promised or 0.0, stream.margin
    if stream.name == "stalled" and baseline.queued:  # the margin grew by a share that counts the queue
        margin = min(margin, max(evidence.margin / 2, bad / of / 4))
        tolerance = 2 * margin
    above = min(max(high, promised) + 2 * margin, 0.98)
    below = min(max(low, promised) + 2 * tolerance, 0.98)
    return above, below, tolerance


def close_wide_tick(stream: EvidenceStream, evidence: CanaryEvidence) -> EvidenceStream:
    """Count each server's tick as one bad or good draw: robust against clumped failures."""
    if stream.without:
        without = {group: close_wide_tick(other, evidence) for group, other in stream.without.items()}
        return replace(close_wide_tick(replace(stream, without={}), evidence), without=without)
    spread = evidence.calibration.get(stream.name)
    if stream.ticks is None or spread is None:
        return replace(stream, wide={})
    above = {
        server: bad > spread.tick_edge * of
        for server, (of, bad) in stream.wide.items()
        if of >= WIDE_REQUESTS
    }
    blue = [over for server, over in above.items() if server]
    green = [over for server, over in above.items() if not server]
    margin = tick_margin(stream, spread)
    ticks = update_with_control(
        stream.ticks,
        (len(blue), sum(blue)),
        (len(green), sum(green)),
        margin=margin,
        tolerance=2 * margin,
        phi=tick_phi_of(spread),
        at_s=evidence.all_s,
        tick_s=WIDE_S,
    )
    return replace(stream, ticks=ticks, wide={})
