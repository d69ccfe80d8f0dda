"""When a second is no evidence: nothing can be seen, blue has trouble of its own, or the sides are unlike.

What is held is neither for green nor against it, and its time does not count as served.
"""

from dataclasses import dataclass, replace
from math import sqrt

from agent.domain.model import Step
from agent.domain.request_counts import RequestCounts
from agent.domain.trial import Observation, Trial

RECENT_S = 120.0  # half-life of who was asked how often
ILL_S = 30.0  # half-life of what failed at blue
ILL = 0.2  # so much more than its record fails at blue: an incident, whoever has it
ENOUGH = 20.0
WARM_S = 60.0  # half-life of prefix hits
COLD_AT_MOST_S = 600.0  # a green that stays cold for longer is judged as it is
AS_WARM = 0.8
PREFIX_TOKENS = 1000.0
HITS_MATTER = 0.1
ASTRAY, SURE = 0.5, 6.0  # a share so far beside its weight, by so many standard errors
BUSIER = 1.15  # times the record's load: so much more than its share a server at parity may get as well


@dataclass(frozen=True, slots=True)
class Inadmissible:
    """`all`: no stream counts. `latency`: only errors and refusals count, and nothing passes.

    `busier`: latency counts for green, but not against it. Empty: nothing is held.
    """

    all: str = ""
    latency: str = ""
    busier: str = ""


def update_recent(trial: Trial, observation: Observation) -> Trial:
    """What the next seconds are compared with: sums in which older seconds fade."""
    blue = observation.blue.values()
    asked = (sum(arm.asked for arm in blue), observation.green.asked, 1)
    failed = (
        sum(arm.errors + arm.gave_up for arm in blue),
        sum(arm.total + arm.gave_up for arm in blue),
    )
    prefixes = tuple(
        count
        for pulse in (observation.blue_pulse, observation.green_pulse)
        for count in ((pulse.prefix_hits, pulse.prefix_queries) if pulse else (0.0, 0.0))
    )
    warm = _decay(trial.prefixes, prefixes, WARM_S)
    recent = _decay((*trial.asked, trial.asked_s), asked, RECENT_S)
    ill = _decay(trial.blue_failed, failed, ILL_S)
    return replace(
        trial,
        asked=(recent[0], recent[1]),
        asked_s=recent[2],
        blue_failed=(ill[0], ill[1]),
        prefixes=(warm[0], warm[1], warm[2], warm[3]),
    )


def _decay(old: tuple[float, ...], new: tuple[float, ...], half_life_s: float) -> tuple[float, ...]:
    keep = 0.5 ** (1 / half_life_s)
    return tuple(round(keep * was + now, 3) for was, now in zip(old, new, strict=True))


def check_admissibility(
    trial: Trial, observation: Observation, *, step: Step, record: RequestCounts, alone: bool
) -> Inadmissible:
    """Why this second does not count. `alone`: green has all the traffic, so nothing is beside it."""
    if observation.blind:
        return Inadmissible(all=f"the proxy's records cannot be read: {observation.blind}")
    if alone:
        return Inadmissible(busier=_higher_load(trial, record))
    if why := _blue_incident(trial, record):
        return Inadmissible(all=why)
    return Inadmissible(
        latency=_cold_cache(trial)
        or _uneven_share(trial, step.weight / 100)
        or _blue_worse_than_baseline(trial)
    )


def _blue_incident(trial: Trial, record: RequestCounts) -> str:
    failed, of = trial.blue_failed
    asked = record.total + record.gave_up
    usual = (record.errors + record.gave_up) / asked if asked else 0.0
    if of < ENOUGH or failed / of <= usual + ILL:
        return ""
    return f"blue has an incident of its own: {failed / of:.0%} of its requests fail, {usual:.0%} did before"


def _blue_worse_than_baseline(trial: Trial) -> str:
    """Alone, green is held up to blue's record: while blue breaks it as well, green must not get there."""
    failed, of = trial.blue_failed
    errors = next((stream for stream in trial.streams if stream.name == "errors"), None)
    if errors is None or of < ENOUGH:
        return ""
    limit = min(max(errors.usual, errors.promised or 0.0) + 2 * errors.margin, 1.0)
    if failed / of <= limit + sqrt(limit * (1 - limit) / of):
        return ""
    return f"blue itself is worse than before: {failed / of:.1%} of its requests fail, {errors.usual:.1%} did"


def _higher_load(trial: Trial, record: RequestCounts) -> str:
    """Alone, green's latency is held up to a record of another time, which may have been quieter.

    Then late requests prove no worse green; that they are few proves all the more that it is not worse.
    Errors count as ever. What chance makes of the record's count (two standard errors) is left open.
    """
    if not trial.record_s or trial.asked[1] < ENOUGH:
        return ""
    usual = (record.asked + 2 * sqrt(record.asked)) / trial.record_s
    now = trial.asked[1] / trial.asked_s
    if now <= BUSIER * usual:
        return ""
    was = record.asked / trial.record_s
    return (
        f"green is asked {now:.3g} times a second, blue's record is of {was:.3g}: late requests do not count"
    )


def _cold_cache(trial: Trial) -> str:
    """Green's prefix cache is not as full as blue's yet."""
    blue_hits, blue_queries, hits, queries = trial.prefixes
    if min(blue_queries, queries) < PREFIX_TOKENS or trial.valid_s > COLD_AT_MOST_S:
        return ""
    usual, now = blue_hits / blue_queries, hits / queries
    if usual < HITS_MATTER or now >= AS_WARM * usual:
        return ""
    return f"green's prefix cache is cold: {now:.0%} of prompt tokens hit it, {usual:.0%} of blue's"


def _uneven_share(trial: Trial, weight: float) -> str:
    """Latency is comparable at equal load only; sessions are few, so some deviation is usual."""
    blue, green = trial.asked
    of = blue + green
    if of < ENOUGH:
        return ""
    share = green / of
    error = sqrt(weight * (1 - weight) / of)
    if abs(share - weight) <= max(ASTRAY * min(weight, 1 - weight), SURE * error):
        return ""
    return f"green gets {share:.0%} of the requests, not {weight:.0%}: latency is not comparable"
