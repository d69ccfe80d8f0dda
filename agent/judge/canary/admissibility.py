"""When a second's data is inadmissible: no records, an incident of blue's, or sides that are not comparable.

Inadmissible data counts neither for nor against green, and its time does not count towards the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt

from flettner.agent.domain.canary_evidence import GREEN, CanaryEvidence, Observation
from flettner.agent.domain.model import Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import count_missed, fails_badly
from flettner.agent.judge.canary.goodput import compare_rate
from flettner.agent.judge.hard_limits import FRESH_S

RECENT_S = 120.0  # half-life of the request counts per side
ILL_S = 30.0  # half-life of blue's failures
ILL = 0.2  # share of blue's requests that fail above its baseline: an incident
LAGS = 0.5  # share of blue's requests that miss the SLO: it finishes fewer than it gets
ENOUGH = 20.0
WARM_S = 60.0  # half-life of prefix hits
COLD_AT_MOST_S = 600.0  # a green whose cache stays cold for longer is judged as it is
AS_WARM = 0.8
PREFIX_TOKENS = 1000.0
HITS_MATTER = 0.1
ALSO_UNSERVED = ("stalled", "gave_up")  # streams that count as blue failing, beside errors
UNEVEN, SURE = 0.5, 6.0  # deviation of a share from its weight: relative, and in standard errors
DRAINING = "blue still answers earlier requests, maybe on the same GPU: late ones do not count against green"
SHARED = "both run on one card, and blue fails there: late requests do not count against green"
UNEVEN_UNSEEN = 0.2
"""The same where requests that fail before the server are not seen: a green that half of its requests do not
reach gets a third of those that are seen at a weight of 50 %, and passed. Less would hold a green that has
just got its weight: requests are counted when they end."""


@dataclass(frozen=True, slots=True)
class Inadmissible:
    """Reasons; empty if the data is admissible.

    `all`: no stream counts. `latency`: only errors and refusals count, and no step passes. `busier`: latency
    counts for green, but not against it, because green has more load, blue still drains beside it, both share
    a card, or the baseline is worse than late. `draining`: green is slower than it will be, because blue
    still answers requests from before green had all traffic, or serves on the same card.
    """

    all: str = ""
    latency: str = ""
    busier: str = ""
    draining: bool = False


def update_recent(evidence: CanaryEvidence, observation: Observation) -> CanaryEvidence:
    """Add a second to the exponentially decaying sums that later seconds are compared with."""
    blue = observation.blue.values()
    asked = (sum(arm.asked for arm in blue), observation.green.asked, 1)
    failed = (sum(_unserved(arm) for arm in blue), sum(arm.served + arm.gave_up for arm in blue))
    counted = [count_missed(arm) for arm in blue]
    missed = (sum(bad for _, bad in counted), sum(of for of, _ in counted))
    prefixes = tuple(
        count
        for engine in (observation.blue_engine, observation.green_engine)
        for count in ((engine.prefix_hits, engine.prefix_queries) if engine else (0.0, 0.0))
    )
    warm = _decay(evidence.prefixes, prefixes, WARM_S)
    recent = _decay((*evidence.asked, evidence.asked_s), asked, RECENT_S)
    late = _decay(evidence.missed, missed, RECENT_S)
    ill = _decay(evidence.blue_failed, failed, ILL_S)
    pinned = {group: _failed_at_blue(arms) for group, arms in observation.clients.items()}
    ill_groups = {
        group: _decay(evidence.blue_failed_of.get(group, (0.0, 0.0)), pinned.get(group, (0, 0)), ILL_S)
        for group in {**evidence.blue_failed_of, **pinned}
    }
    return replace(
        evidence,
        asked=(recent[0], recent[1]),
        asked_s=recent[2],
        missed=(late[0], late[1]),
        blue_failed=(ill[0], ill[1]),
        blue_failed_of={group: (failed, of) for group, (failed, of) in ill_groups.items()},
        prefixes=(warm[0], warm[1], warm[2], warm[3]),
    )


def _failed_at_blue(arms: Mapping[str, RequestCounts]) -> tuple[int, int]:
    blue = [arm for server, arm in arms.items() if server != GREEN]
    return sum(map(_unserved, blue)), sum(arm.served + arm.gave_up for arm in blue)


def _least_failed(evidence: CanaryEvidence) -> tuple[float, float]:
    """Blue's failed requests and all, without the group of clients that fails most: one is no incident."""
    failed, of = evidence.blue_failed
    rest = [(failed - bad, of - count) for bad, count in evidence.blue_failed_of.values()]
    return min([(failed, of), *rest], key=lambda counts: counts[0] / counts[1] if counts[1] > 0 else 0.0)


def _unserved(arm: RequestCounts) -> int:
    """Requests without a good end, whether they were late or not."""
    return arm.missed - arm.late + arm.gave_up


def _decay(old: tuple[float, ...], new: tuple[float, ...], half_life_s: float) -> tuple[float, ...]:
    keep = 0.5 ** (1 / half_life_s)
    return tuple(round(keep * was + now, 3) for was, now in zip(old, new, strict=True))


def check_admissibility(
    evidence: CanaryEvidence,
    observation: Observation,
    *,
    step: Step,
    baseline: RequestCounts,
    alone: bool,
    missed: bool = False,
    uneven: float = UNEVEN,
) -> Inadmissible:
    """Why this second does not count. `alone`: green has all traffic, so there is no concurrent control.
    What blue still answers was sent before, so green's share of the answers says nothing.

    `uneven`: the deviation of green's share from its weight, as part of it, that sessions explain.
    `missed`: the baseline misses the SLO. What blue's queue does then is no incident, and counts of finished
    requests say less of its share. On a shared card green, which does not queue, has larger batches then, and
    a blue that fails only now fails because of green: late requests say nothing of the change.
    """
    if observation.blind:
        return Inadmissible(all=f"requests cannot be counted: {observation.blind}")
    if alone:
        draining = has_requests(observation)
        busier = _higher_load(evidence, baseline) or _failing_baseline(baseline)
        return Inadmissible(busier=busier or (DRAINING if draining else ""), draining=draining)
    lagging = evidence.missed[1] >= ENOUGH and evidence.missed[0] >= LAGS * evidence.missed[1]
    divided = evidence.shares_card and (missed or lagging)
    busier = SHARED if divided else ""
    if missed:
        return Inadmissible(
            latency=_cold_cache(evidence) or _uneven_share(evidence, step.weight / 100, uneven, lagging=True),
            busier=busier,
            draining=divided,
        )
    if why := _blue_incident(evidence, baseline):
        return Inadmissible(all=why)
    return Inadmissible(
        latency=_cold_cache(evidence)
        or _uneven_share(evidence, step.weight / 100, uneven, lagging=lagging)
        or _blue_worse_than_baseline(evidence),
        busier=busier,
        draining=divided,
    )


def has_requests(observation: Observation) -> bool:
    """Whether blue has requests, by its metrics or, where they are stale, by what it answered."""
    engine = observation.blue_engine
    if engine is not None and not engine.lost and engine.age_s <= FRESH_S:
        return engine.running + engine.waiting > 0
    return any(arm.asked for arm in observation.blue.values())


def _blue_incident(evidence: CanaryEvidence, baseline: RequestCounts) -> str:
    failed, of = _least_failed(evidence)
    asked = baseline.served + baseline.gave_up
    usual = _unserved(baseline) / asked if asked else 0.0
    if of < ENOUGH or failed / of <= usual + ILL:
        return ""
    return (
        f"blue has an incident: {failed / of:.0%} of its requests fail or stall, {usual:.0%} in the baseline"
    )


def _blue_worse_than_baseline(evidence: CanaryEvidence) -> str:
    """Whether blue exceeds its own baseline, with which a green that serves alone is compared."""
    failed, of = _least_failed(evidence)
    errors = next((stream for stream in evidence.streams if stream.name == "errors"), None)
    if errors is None or of < ENOUGH:
        return ""
    usual = errors.usual + sum(stream.usual for stream in evidence.streams if stream.name in ALSO_UNSERVED)
    limit = min(max(usual, errors.promised or 0.0) + 2 * errors.margin, 1.0)
    if failed / of <= limit + sqrt(limit * (1 - limit) / of):
        return ""
    now = f"{failed / of:.1%} of its requests fail or stall, {usual:.1%} before"
    return f"blue is worse than its baseline: {now}"


def _higher_load(evidence: CanaryEvidence, baseline: RequestCounts) -> str:
    """Whether a green that serves alone has a higher load than blue's baseline had.

    Late requests at a higher load are no evidence against green; few of them are evidence for it. Errors
    count as always. The baseline's rate is taken two standard errors higher.
    """
    if evidence.asked[1] < ENOUGH or compare_rate(evidence, baseline) <= 0:
        return ""
    now, was = evidence.asked[1] / evidence.asked_s, baseline.asked / evidence.baseline_s
    return f"green gets {now:.3g} requests/s, blue's baseline is of {was:.3g}: late requests do not count"


def _failing_baseline(baseline: RequestCounts) -> str:
    """Whether most of the baseline is bad, with few complete answers whose latency could be compared.

    A green that is no better than that ends without a gain.
    """
    if not fails_badly(baseline):
        return ""
    return "most requests of blue's baseline failed or missed the SLO: late ones do not count against green"


def _cold_cache(evidence: CanaryEvidence) -> str:
    """Whether green's prefix cache is not as warm as blue's yet."""
    blue_hits, blue_queries, hits, queries = evidence.prefixes
    if min(blue_queries, queries) < PREFIX_TOKENS or evidence.valid_s > COLD_AT_MOST_S:
        return ""
    usual, now = blue_hits / blue_queries, hits / queries
    if usual < HITS_MATTER or now >= AS_WARM * usual:
        return ""
    return f"green's prefix cache is cold: {now:.0%} of its prompt tokens hit, {usual:.0%} of blue's"


def _uneven_share(evidence: CanaryEvidence, weight: float, uneven: float, *, lagging: bool) -> str:
    """Whether green's share deviates from its weight: latency is comparable at equal load only.

    Sessions are few, so some deviation is typical. `lagging`: blue finishes fewer requests than it gets, so
    green's share of the finished ones may be larger.
    """
    blue, green = evidence.asked
    of = blue + green
    if of < ENOUGH:
        return ""
    share = green / of
    if lagging and share > weight:
        return ""
    error = sqrt(weight * (1 - weight) / of)
    if abs(share - weight) <= max(uneven * min(weight, 1 - weight), SURE * error):
        return ""
    return f"green gets {share:.0%} of the requests, not {weight:.0%}: latency is not comparable"
