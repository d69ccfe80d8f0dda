"""The policies' memory: for how long a cause is seen, and whether an open suggestion still has one. Pure.

A suggestion needs its cause in two windows that do not overlap: the cause is seen all the time between a
reading and one that is a window later. If the error budget burns fast, one window will do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.model import Proposal, Slo
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Sighting, Suggestion
from flettner.agent.domain.upgrade import without_gpus
from flettner.vllm_facts.values import Knob, Value

MIN_COVERAGE = 0.8  # of the window's seconds with a fresh scrape
FLICKER = timedelta(seconds=5)  # a cause that is absent for less is the same one
GONE_S, GONE_WINDOWS = 120.0, 2  # a suggestion is withdrawn after the longer of the two
FORGOTTEN_S = 3600  # of any sighting, so that their number is bounded
FAST_BURN = 14.4  # the paging threshold of the SRE workbook, ch. 5: 2 % of a month's budget in an hour
FEW = 0.5  # attainment below which a budget burns fast that cannot be exceeded 14.4 times
LEAST_REQUESTS, LEAST_BAD = 20, 5  # of a window, for a statement about its budget


def no_measurement(reading: Reading | None) -> str:
    """Why the reading is evidence of nothing; empty if it is evidence."""
    if reading is None or reading.coverage < MIN_COVERAGE:
        return "no fresh metrics: nothing is suggested on stale or missing data"
    if reading.running.high == 0 and reading.waiting.high == 0:
        return "the server is idle: there is no load to measure"
    return ""


def knob_directions(
    to: Mapping[Knob, Value], before: Mapping[Knob, Value], assumed: Mapping[Knob, Value]
) -> frozenset[str]:
    """What a change does, without its size: "max_num_seqs up"."""
    return frozenset(_direction(knob, new, before.get(knob), assumed.get(knob)) for knob, new in to.items())


def _direction(knob: Knob, new: Value, now: Value, assumed: Value) -> str:
    present = assumed if now is None else now
    if isinstance(new, bool) or isinstance(present, bool):
        return f"{knob}={new}"
    if isinstance(new, int | float) and isinstance(present, int | float):
        return f"{knob} {'up' if new > present else 'down'}"
    return f"{knob}={new}"


def directions_of(suggestion: Suggestion) -> frozenset[str]:
    proposal = suggestion.proposal
    return knob_directions(without_gpus(proposal.to), suggestion.before, proposal.assumed)


def values_of(to: Mapping[Knob, Value]) -> frozenset[str]:
    """The exact values of a change, as keys of sightings."""
    return frozenset(f"{knob}: {value}" for knob, value in to.items())


def rule_key(rule: str) -> str:
    return f"rule {rule}"


def record_sightings(
    state: State, reading: Reading, at: datetime, seen: Iterable[str], hidden: Iterable[str]
) -> State:
    """Record what policies propose in this second, which has fresh metrics and load.

    `hidden`: what an outranked rule proposes; it counts neither as seen nor as missing. While the load
    changes nothing is missing, and nothing is seen for the first time.
    """
    seen, hidden = set(seen), set(hidden)
    sightings = {
        **{
            key: Sighting(since=suggestion.made_at, seen_at=suggestion.made_at)
            for suggestion in state.suggestions.open
            for key in directions_of(suggestion)
        },
        **state.sightings,
    }
    updated = {}
    for key in sorted(sightings.keys() | seen):
        old = sightings.get(key)
        lasts = old is not None and timedelta(0) <= at - old.seen_at <= FLICKER
        if key in seen and old is not None and lasts:
            updated[key] = Sighting(since=old.since, seen_at=at)
        elif key in seen and not reading.shift:
            updated[key] = Sighting(since=at, seen_at=at)
        elif old is not None and (key in hidden or reading.shift):
            updated[key] = old
        elif old is not None and old.missing_s < FORGOTTEN_S:
            updated[key] = replace(old, missing_s=old.missing_s + 1)
    return replace(state, sightings=updated)


def in_two_windows(state: State, keys: Iterable[str], reading: Reading, at: datetime) -> bool:
    """Whether all of these were seen in this window and in one before it that does not overlap it."""
    window = timedelta(seconds=reading.span_s)
    sightings = [state.sightings.get(key) for key in keys]
    return all(
        sighting is not None and sighting.seen_at == at and at - sighting.since >= window
        for sighting in sightings
    )


def is_established(state: State, proposal: Proposal, reading: Reading, at: datetime, slo: Slo) -> bool:
    """Whether its rule, or the change that it proposes, has been proposed for long enough."""
    if burns_fast(reading, slo):
        return True
    does = knob_directions(proposal.to, state.fleet.setting, proposal.assumed)
    by_rule = in_two_windows(state, (rule_key(proposal.rule),), reading, at)
    return by_rule or (bool(does) and in_two_windows(state, does, reading, at))


def missing_s(state: State, suggestion: Suggestion) -> int:
    """Seconds with fresh metrics since a policy last proposed the change."""
    sightings = (state.sightings.get(key) for key in directions_of(suggestion))
    return max((sighting.missing_s for sighting in sightings if sighting is not None), default=0)


def is_seen(state: State, suggestion: Suggestion, at: datetime) -> bool:
    """Whether a policy has proposed the change lately."""
    sightings = (state.sightings.get(key) for key in directions_of(suggestion))
    return all(sighting is not None and at - sighting.seen_at <= FLICKER for sighting in sightings)


def is_gone(state: State, suggestion: Suggestion, reading: Reading) -> bool:
    return missing_s(state, suggestion) >= max(GONE_S, GONE_WINDOWS * reading.span_s)


def burns_fast(reading: Reading, slo: Slo) -> bool:
    """Whether an objective's budget burns at least 14.4 times too fast in this window.

    Where the objective allows more than one request in 14.4, that is impossible; half of the requests missing
    it stands for it.
    """
    total = sum(count for end, count in reading.requests.items() if end not in ("refused", "stalled"))
    failed = sum(reading.requests.get(bad, 0) for bad in ("failed", "truncated", "aborted"))
    measured = ((reading.ttft, slo.ttft), (reading.itl, slo.itl), (reading.e2e, slo.e2e))
    return _burns(total, failed, 1 - slo.errors) or any(
        _burns(
            latency.count + latency.overdue,
            latency.count * (latency.over_slo or 0.0) + latency.overdue,
            1 - objective.share,
        )
        for latency, objective in measured
        if latency is not None and objective is not None
    )


def _burns(of: float, bad: float, allowed: float) -> bool:
    if of < LEAST_REQUESTS or bad < LEAST_BAD or allowed <= 0:
        return False
    limit = FAST_BURN * allowed
    return bad >= limit * of if limit < 1 else bad > FEW * of
