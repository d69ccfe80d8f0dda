"""Group seconds into ticks, and update the evidence of each stream with each closed tick."""

from dataclasses import replace
from math import log

from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts, quantile
from flettner.agent.domain.trial import (
    NONE,
    Counts,
    EProcessPair,
    EvidenceStream,
    Observation,
    Trial,
    add_counts,
)
from flettner.agent.judge.canary.admissibility import Inadmissible
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
from flettner.agent.judge.wording import wilson_interval

FULL_WEIGHT = 100  # at which blue has no traffic
TICK_S, TICK_REQUESTS, TICK_AT_MOST_S = 5.0, 5, 15.0
AT_ONCE = 20  # requests of each side that close a tick early
WIDE_S, WIDE_REQUESTS = 15.0, 5  # of a server's tick, as CalibrationWindow counts them
SETTLE_AT_MOST_S, OWN_LEAST = 60.0, 5


def add_observation(
    trial: Trial,
    observation: Observation,
    *,
    step: Step,
    slo: Slo,
    green: RequestCounts,
    record: RequestCounts,
    hold: Inadmissible,
) -> Trial:
    """Add one admissible second to the trial. `green`: counts of the step."""
    if trial.settled_s < min(settling_s(record), own_settling_s(green)):
        return replace(trial, settled_s=trial.settled_s + 1.0)
    alone = step.weight >= FULL_WEIGHT
    trial = replace(
        trial,
        streams=tuple(
            stream
            if hold.latency and stream.name not in ANSWERS
            else buffer_counts(
                stream, observation, slo, against=_counts_against_green(hold, stream), alone=alone
            )
            for stream in trial.streams
        ),
        goodput=trial.goodput if hold.latency else buffer_goodput(trial.goodput, observation),
        tick_s=trial.tick_s + 1.0,
        wide_s=trial.wide_s + 1.0,
        valid_s=trial.valid_s + 1.0,
        all_s=trial.all_s + 1.0,
    )
    if trial.wide_s >= WIDE_S:
        trial = replace(trial, streams=tuple(close_wide_tick(s, trial) for s in trial.streams), wide_s=0.0)
    if not _is_tick_due(trial):
        return trial
    closed = tuple(
        close_tick(stream, trial, step, slo, record, against=_counts_against_green(hold, stream))
        for stream in trial.streams
    )
    goodput = close_goodput_tick(trial, step, slo, record, alone=alone)
    return replace(trial, streams=closed, goodput=goodput, tick_s=0.0)


def _counts_against_green(hold: Inadmissible, stream: EvidenceStream) -> bool:
    """Whether this stream's bad requests count against green."""
    return not hold.busier or stream.name in ANSWERS


def settling_s(record: RequestCounts) -> float:
    """Seconds until nine of ten requests end; earlier, only quick and failed ones have ended."""
    return min(quantile(record.e2e, 0.9) or 0.0, SETTLE_AT_MOST_S)


def own_settling_s(green: RequestCounts) -> float:
    """Seconds until nine of ten of green's requests end, by those that ended.

    Quick ones end first, so the quantile is at most the time that has passed: twice it is needed. A blue that
    queues for a minute does not make green's step wait for that long.
    """
    known = sum(green.e2e) >= OWN_LEAST
    return 2 * (quantile(green.e2e, 0.9) or 0.0) if known else SETTLE_AT_MOST_S


def log_worse(stream: EvidenceStream) -> float:
    """The logarithm of the evidence that green is worse, mean over requests and ticks."""
    if stream.ticks is None:
        return stream.requests.log_worse
    return log_sum((stream.requests.log_worse, stream.ticks.log_worse)) - log(2)


def log_mean(trial: Trial, slo: Slo) -> float:
    """The logarithm of the mean over all possible streams; one that is not open yet counts as 1."""
    every = len(stream_names(slo))
    logs = [log_worse(stream) for stream in trial.streams]
    closed = every - len(logs)
    return log_sum([*logs, log(closed)] if closed > 0 else logs) - log(max(every, len(logs)))


def buffer_counts(
    stream: EvidenceStream, observation: Observation, slo: Slo, *, against: bool, alone: bool = False
) -> EvidenceStream:
    """Buffer the second's counts until their ticks close. `against`: the hard limits count them."""
    of, bad = count_bad(observation.green, stream.name, stream.edge_s, slo, alone=alone)
    wide, blue_of, blue_bad = dict(stream.wide), 0, 0
    for server, arm in {**observation.blue, "": observation.green}.items():
        n, k = count_bad(arm, stream.name, stream.edge_s, slo, alone=alone)
        was_n, was_k = wide.get(server, (0, 0))
        if n:
            wide[server] = (was_n + n, was_k + k)
        if server:
            blue_of, blue_bad = blue_of + n, blue_bad + k
    now: Counts = (blue_of, blue_bad, of, bad)
    return replace(
        stream,
        pending=add_counts(stream.pending, now),
        counted=add_counts(stream.counted, now) if against else stream.counted,
        wide=wide if stream.ticks else {},
    )


def _is_tick_due(trial: Trial) -> bool:
    """Decided by time and numbers of requests only, never by their outcomes."""
    n_b, _, n_c, _ = trial.streams[0].pending
    of = min(n_b or n_c, n_c)
    enough = of >= TICK_REQUESTS if trial.tick_s >= TICK_S else of >= AT_ONCE
    return enough or trial.tick_s >= TICK_AT_MOST_S


def close_tick(
    stream: EvidenceStream, trial: Trial, step: Step, slo: Slo, record: RequestCounts, *, against: bool
) -> EvidenceStream:
    """Turn the tick's counts into evidence; without requests of one side they wait for the next tick.

    `against`: for a green that serves alone, bad requests count too, not only their absence.
    """
    n_b, _, n_c, _ = stream.pending
    phi = phi_of(calibration_of(trial.calibration, stream.name, slo))
    if n_b and n_c:
        requests = update_with_control(
            stream.requests,
            stream.pending,
            margin=stream.margin,
            tolerance=stream.tolerance,
            phi=phi,
            at_s=trial.all_s,
            tick_s=trial.tick_s,
        )
        return replace(stream, requests=requests, pending=NONE)
    if n_c and step.weight >= FULL_WEIGHT:
        pair = _compare_with_baseline(stream, trial, slo, record, phi)
        if not against:
            pair = replace(stream.requests, good=pair.good, most_good=pair.most_good)
        return replace(stream, requests=pair, pending=NONE)
    return stream


def _compare_with_baseline(
    stream: EvidenceStream, trial: Trial, slo: Slo, record: RequestCounts, phi: float
) -> EProcessPair:
    """Compare with blue's earlier baseline: with twice the margins, beyond the baseline's own uncertainty."""
    of, bad = count_bad(record, stream.name, stream.edge_s, slo, alone=True)
    low, high = wilson_interval(round(bad / phi), round(of / phi)) or (stream.usual, stream.usual)
    promised = stream.promised or 0.0
    margin, tolerance = stream.margin, stream.tolerance
    if stream.name == "stalled" and record.queued:  # the margin grew by a share that counts the queue
        margin = min(margin, max(trial.margin / 2, bad / of / 4))
        tolerance = 2 * margin
    return update_without_control(
        stream.requests,
        stream.pending[2],
        stream.pending[3],
        margin=2 * stream.margin,  # the alternatives stay as many as before
        worse_above=min(max(high, promised) + 2 * margin, 0.98),
        tolerance=2 * tolerance,
        good_below=min(max(low, promised) + 2 * tolerance, 0.98),
        phi=phi,
        at_s=trial.all_s,
    )


def close_wide_tick(stream: EvidenceStream, trial: Trial) -> EvidenceStream:
    """Count each server's tick as one bad or good trial: robust against clumped failures."""
    spread = trial.calibration.get(stream.name)
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
        (len(blue), sum(blue), len(green), sum(green)),
        margin=margin,
        tolerance=2 * margin,
        phi=tick_phi_of(spread),
        at_s=trial.all_s,
        tick_s=WIDE_S,
    )
    return replace(stream, ticks=ticks, wide={})
