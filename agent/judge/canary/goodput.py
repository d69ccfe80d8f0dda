"""Goodput: the share of requests that meet every promised objective and do not fail. Is green's better?

A request is bad if it failed, stalled, missed an objective, or was abandoned by the client. Two comparisons:

    beside  green with blue's requests of the same seconds: the 2x2 e-process with the roles swapped
            better  H0: green's bad share >= blue's            (margin 0)
            futile  H0: green's bad share <= blue's - GAIN
    record  green with the baseline: blue under full load, in the last minutes before the canary
            better  H0: green's bad share >= the baseline's lower bound (Wilson, counts over phi)
            futile  H0: green's bad share <= the baseline's - half of the least gain, where the other half is
                    for the baseline's own uncertainty; or <= its upper bound - the least gain, if less
            harm    H0: green's bad share <= the baseline's upper bound, or what the SLO allows, + twice the
                    margin that a stream of the baseline's share has; requests at a higher rate do not count.
                    It rolls back a green with a longer queue where no latency can be compared

A canary relieves blue: next to a green with half of the load an overloaded blue recovers, and a green that
starts with an empty queue looks better than a blue that still drains one. So where the baseline misses the
SLO, a gain is shown against the baseline at the baseline's rate, after green had all traffic for BURN_IN_S:
an overload of 1 % needs that long to make a queue of three seconds. Evidence of futility counts at once,
because a server without a queue only looks better than it is.

The least gain worth a change is GAIN of the requests, or half of those that are bad if that is less.
"""

from dataclasses import replace
from math import exp, log, sqrt

from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.trial import NONE, EProcessPair, Goodput, Observation, Trial, add_counts
from flettner.agent.judge.eprocess import log_sum, update_with_control, update_without_control
from flettner.agent.judge.failure_modes import DEFAULT_PHI, LATENCIES, calibration_of, objective_of, phi_of
from flettner.agent.judge.wording import wilson_interval

GAIN = 0.10
BADLY = 0.5  # a blue of which so many requests are bad fails its SLO by far
LEAST_RECORD = 20  # requests
SURE_BETTER, SURE_FUTILE = log(100.0), log(50.0)
SURE_RELIEVED = log(20.0)
SURE_HARM = log(1000.0)  # beside the 1 in 100 of all streams
BURN_IN_S = 300.0
BUSIER = 1.15  # times the baseline's rate: a server at parity may get so much more than its share as well


def count_missed(arm: RequestCounts) -> tuple[int, int]:
    """(requests, bad requests) by goodput."""
    return arm.served + arm.gave_up, arm.missed + arm.gave_up


def allowed_share(slo: Slo) -> float:
    """The share of bad requests within the SLO, if each objective is missed by other requests."""
    latencies = (objective_of(slo, name) for name in LATENCIES)
    return min(1.0, 1 - slo.errors + sum(1 - objective.share for objective in latencies if objective))


def goodput_phi(trial: Trial, slo: Slo) -> float:
    """The largest design effect of what makes a request bad."""
    names = ("errors", "stalled", *(name for name in LATENCIES if objective_of(slo, name) is not None))
    return max(phi_of(calibration_of(trial.calibration, name, slo)) for name in names)


def advancing_phi(trial: Trial, slo: Slo) -> float:
    """The design effect where an error costs time only: to take more traffic or to give a change up."""
    return min(goodput_phi(trial, slo), DEFAULT_PHI)


def misses_slo(trial: Trial, slo: Slo, record: RequestCounts) -> bool:
    """Whether the baseline misses the SLO, by far or beyond what pauses of servers explain.

    Then a canary relieves blue.
    """
    of, bad = count_missed(record)
    if of < LEAST_RECORD or not bad:
        return False
    low, _ = record_interval(record, goodput_phi(trial, slo))
    return fails_badly(record) or low > allowed_share(slo)


def fails_badly(counts: RequestCounts) -> bool:
    """Whether at least half of these requests are bad."""
    of, bad = count_missed(counts)
    return of >= LEAST_RECORD and bad >= BADLY * of


def least_gain(record: RequestCounts) -> float:
    of, bad = count_missed(record)
    return min(GAIN, 0.5 * bad / of) if bad else GAIN


def buffer_goodput(goodput: Goodput, observation: Observation) -> Goodput:
    """Buffer the second's counts until the tick closes."""
    blue = [count_missed(arm) for arm in observation.blue.values()]
    of, bad = count_missed(observation.green)
    now = (sum(n for n, _ in blue), sum(k for _, k in blue), of, bad)
    return replace(
        goodput, pending=add_counts(goodput.pending, now), counted=add_counts(goodput.counted, now)
    )


def close_goodput_tick(trial: Trial, step: Step, slo: Slo, record: RequestCounts, *, alone: bool) -> Goodput:
    """Turn the tick's counts into evidence.

    Beside a blue that misses its SLO a proof leads to more traffic, not to the end: see advancing_phi.
    """
    goodput, phi = trial.goodput, goodput_phi(trial, slo)
    advancing = advancing_phi(trial, slo)
    missed = misses_slo(trial, slo, record)
    n_b, k_b, n_c, k_c = goodput.pending
    if not n_c:
        return goodput
    beside = goodput.beside
    if n_b:
        beside = update_with_control(
            beside,
            (n_c, k_c, n_b, k_b),
            margin=0.0,
            tolerance=GAIN,
            phi=advancing if missed else phi,
            at_s=trial.valid_s,
            tick_s=trial.tick_s,
        )
    elif not alone:
        return goodput
    pair = goodput.record
    if step.weight >= step.parity and missed:
        futile = _compare_with_record(trial, record, advancing)
        better = _compare_with_record(trial, record, phi) if alone else futile
        pair = _admitted(trial, step, record, futile, better, alone=alone)
    harm = _harm(trial, slo, record, phi) if alone else goodput.harm
    return replace(goodput, beside=beside, record=pair, harm=harm, pending=NONE)


def _harm(trial: Trial, slo: Slo, record: RequestCounts, phi: float) -> EProcessPair:
    total, missed = count_missed(record)
    if total < LEAST_RECORD or compare_rate(trial, record) > 0:
        return trial.goodput.harm
    _, _, of, bad = trial.goodput.pending
    margin = max(trial.margin, missed / total / 2)
    limit = min(max(record_interval(record, phi)[1], allowed_share(slo)) + margin, 0.98)
    return update_without_control(
        trial.goodput.harm,
        of,
        bad,
        margin=margin,
        worse_above=limit,
        tolerance=margin,
        good_below=limit,
        phi=phi,
        at_s=trial.valid_s,
    )


def _compare_with_record(trial: Trial, record: RequestCounts, phi: float) -> EProcessPair:
    """`worse` is evidence of futility, `good` of a gain."""
    (_, _, of, bad), gain = trial.goodput.pending, least_gain(record)
    low, high = record_interval(record, phi)
    total, missed = count_missed(record)
    return update_without_control(
        trial.goodput.record,
        of,
        bad,
        margin=gain,
        worse_above=min(max(min(missed / total - gain / 2, high - gain), 0.01), 0.98),
        tolerance=gain,
        good_below=min(max(low, 0.01), 0.98),
        phi=phi,
        at_s=trial.valid_s,
    )


def _admitted(
    trial: Trial,
    step: Step,
    record: RequestCounts,
    futile: EProcessPair,
    better: EProcessPair,
    *,
    alone: bool,
) -> EProcessPair:
    """The evidence that the present load allows: `worse` of the first pair, `good` of the second.

    With more requests than the baseline only a gain counts, with fewer, or before a queue had time to grow,
    only futility.
    """
    old = trial.goodput.record
    rate = compare_rate(trial, record) if alone else 0
    pair = old if rate > 0 else futile
    if alone and (rate < 0 or trial.valid_s <= burn_in_s(step)):
        return replace(pair, good=old.good, most_good=old.most_good)
    return replace(pair, good=better.good, most_good=better.most_good)


def burn_in_s(step: Step) -> float:
    """Seconds of all traffic that do not count for green: half of a short step."""
    return min(BURN_IN_S, step.at_least_s / 2)


def compare_rate(trial: Trial, record: RequestCounts) -> int:
    """-1: green gets fewer requests than the baseline had, 1: more; 0: as many, within two errors."""
    if not trial.record_s or not trial.asked_s:
        return 0
    error = 2 * sqrt(record.asked)
    now = trial.asked[1] / trial.asked_s
    spread = 2 * sqrt(trial.asked[1]) / trial.asked_s
    if now + spread < (record.asked - error) / trial.record_s:
        return -1
    return 1 if now > BUSIER * (record.asked + error) / trial.record_s else 0


def log_better(goodput: Goodput) -> float:
    """Evidence that green is better than blue beside it."""
    return goodput.beside.log_worse


def log_futile(trial: Trial, slo: Slo) -> float:
    """Evidence that green is not better than a healthy blue beside it by GAIN, at the advancing phi."""
    times = goodput_phi(trial, slo) / advancing_phi(trial, slo)
    return log_sum([times * value for value in trial.goodput.beside.good]) - log(3)


def log_better_than_record(goodput: Goodput) -> float:
    """Evidence now, not its maximum: a queue may still grow."""
    return log_sum(goodput.record.good) - log(3)


def log_futile_against_record(goodput: Goodput) -> float:
    return goodput.record.log_worse


def log_harm(goodput: Goodput) -> float:
    """Evidence that green's goodput is worse than that of blue's baseline."""
    return goodput.harm.log_worse


def describe_missed(goodput: Goodput) -> str:
    """As in "green missed the SLO with 3 of 1,411 requests, blue with 1,463 of 1,463"."""
    blue_of, blue_bad, of, bad = goodput.counted
    blue = f", blue with {blue_bad:,} of {blue_of:,}" if blue_of else ""
    return f"green failed or missed the SLO with {bad:,} of {of:,} requests{blue}"


def describe_record(trial: Trial, record: RequestCounts) -> str:
    """As in "blue's baseline with 312 of 312 at 4.9 requests/s"."""
    of, bad = count_missed(record)
    rate = f" at {record.asked / trial.record_s:.3g} requests/s" if trial.record_s else ""
    return f"blue's baseline with {bad:,} of {of:,}{rate}"


def describe_odds(log_e: float, needed: float) -> str:
    """As in "12 of 100"."""
    return f"{exp(min(max(log_e, -4.6), 20.0)):.2g} of {exp(needed):.0f}"


def record_interval(record: RequestCounts, phi: float) -> tuple[float, float]:
    """The baseline's share of bad requests: Wilson, counts over phi."""
    of, bad = count_missed(record)
    return wilson_interval(round(bad / phi), max(round(of / phi), 1)) or (0.0, 1.0)
