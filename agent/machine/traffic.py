"""The traffic outside rollouts: the last minutes' counts, and the request rate while it was steady. Pure.

The counts are the judge's baseline. A forecast needs the rate that will come: not that of a ramp, of a window
over a change of load, or of the minutes after a rollout, in which queues drain.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.events import Event, Observed
from flettner.agent.domain.request_counts import NO_REQUESTS, RequestCounts
from flettner.agent.domain.state import RecentTraffic, State, SteadyRate
from flettner.agent.machine.evidence import MIN_COVERAGE
from flettner.agent.machine.start_costs import speed_of
from flettner.agent.machine.transitions import IDLE, sum_counts

RECENT = timedelta(seconds=60)
GAP = timedelta(seconds=5)  # without an observation outside rollouts: a rollout, or a restart of the daemon
SPEED_KEEPS = 0.5 ** (1 / 60)  # of the fleet's speed, each second
SMOOTH_S = 120.0  # the rate is the mean of the windows that ended in this time
BEGINS = 2.0  # times the rate before
STEADY_TICKS = 240  # one hour of one server: enough to replace any older calibration


def remember_traffic(state: State, event: Event) -> State:
    """Outside rollouts, keep the fleet's last minutes and calibration; the judge compares a swap with them.

    A calibration of few ticks, from the first minutes of a new process, does not replace one of hours.
    """
    if not isinstance(event, Observed) or state.phase not in IDLE:
        return state
    better = {
        stream: new
        for stream, new in event.calibration.items()
        if (old := state.traffic.calibration.get(stream)) is None or new.ticks >= min(old.ticks, STEADY_TICKS)
    }
    if better:
        traffic = replace(state.traffic, calibration={**state.traffic.calibration, **better})
        state = replace(state, traffic=traffic)
    counted = _measure_rate(state, _add_counts(state, event), event)
    waiting = sum(
        engine.waiting for server in state.fleet.running if (engine := event.engines.get(server.name))
    )
    speed = counted.speed.plus(speed_of(state, event), keep=SPEED_KEEPS)
    return replace(state, traffic=replace(counted, waiting=waiting, speed=speed))


def select_usual(state: State, arms: Mapping[str, RequestCounts]) -> dict[str, RequestCounts]:
    """The counts by which servers of one setting are seen to differ by chance; empty during a rollout.

    There the start of a green makes blue late where both share a card or cores. Taken for chance, one such
    minute would leave the rollouts of the next hours without a verdict.
    """
    servers = state.fleet.running if state.phase in IDLE else ()
    return {server.name: arms[server.name] for server in servers if server.name in arms}


def _add_counts(state: State, event: Observed) -> RecentTraffic:
    """Add a second to the present minute. After a gap both minutes restart: they must be successive."""
    traffic = state.traffic
    new = sum_counts(state.fleet.running, event)
    if traffic.since is None or _is_gap(traffic.until, event.at):
        return replace(traffic, minutes=(new,), since=event.at, until=event.at)
    if event.at - traffic.since > RECENT:
        return replace(traffic, minutes=(new, *traffic.minutes[:1]), since=event.at, until=event.at)
    minutes = (traffic.minutes[0] + new, *traffic.minutes[1:]) if new.asked else traffic.minutes
    return replace(traffic, minutes=minutes, until=event.at)


def _measure_rate(state: State, traffic: RecentTraffic, event: Observed) -> RecentTraffic:
    """Follow the arrivals at blue, times its share of the replicas; the rate stays while the load changes.

    A load that began after an idle time has the rate since then, if that is more: a window over its beginning
    shows half of it, or none, and the rate of the idle time is none to expect.
    """
    reading, old = event.reading, traffic.steady
    if reading is None or reading.work.arrivals_per_s is None:
        return traffic
    share = state.fleet.replica_count / (state.fleet.blue.replicas if state.fleet.blue else 1)
    begun = share * (reading.work.begun_arrivals_per_s or 0.0)
    if begun > BEGINS * (old.rps if old is not None else 0.0):
        return replace(traffic, steady=SteadyRate(begun, event.at, event.at))
    if reading.coverage < MIN_COVERAGE:
        return traffic
    rate = reading.work.arrivals_per_s * share
    if old is None:
        return traffic if reading.shift else replace(traffic, steady=SteadyRate(rate, event.at, event.at))
    if reading.shift or _is_gap(old.at, event.at):
        return replace(traffic, steady=SteadyRate(old.rps, event.at, event.at))
    steady_s = (event.at - old.since).total_seconds() - reading.span_s
    if steady_s < 0:  # the window began before
        return replace(traffic, steady=replace(old, at=event.at))
    weight = 1 / (1 + min(steady_s, SMOOTH_S))
    return replace(traffic, steady=SteadyRate(old.rps + (rate - old.rps) * weight, old.since, event.at))


def _is_gap(last: datetime | None, at: datetime) -> bool:
    """Whether the observations are not successive; also after the clock was set back."""
    return last is None or not timedelta(0) <= at - last <= GAP


def recent_traffic(state: State, at: datetime) -> tuple[RequestCounts, float]:
    """The fleet's request counts of the last one to two minutes, and the seconds they cover.

    No seconds while a clock that was set back is before their begin.
    """
    if state.traffic.since is None:
        return NO_REQUESTS, 0.0
    earlier = RECENT * (len(state.traffic.minutes) - 1)
    covered_s = (at - state.traffic.since + earlier).total_seconds()
    return sum(state.traffic.minutes, NO_REQUESTS), max(0.0, covered_s)


def expected_rate(state: State, at: datetime) -> float | None:
    """Requests per second to expect: of the last steady minutes, else of the last counts; None: unknown."""
    if state.traffic.steady is not None:
        return state.traffic.steady.rps
    recent, recent_s = recent_traffic(state, at)
    return recent.asked / recent_s if recent_s else None
