"""Whether late requests prove that an objective is missed. Pure.

A share is tested, not compared: 2 late requests of 35 say nothing against an allowed 5 %.
"""

from math import log

from agent.domain.model import Objective, Slo
from agent.domain.reading import Latency, Reading

UNLIKELY = 0.01  # below it chance is no explanation of late requests
LEAST_REQUESTS = 20  # fewer show nothing


def is_measured(
    latency: Latency | None, objective: Objective | None, requests: float = LEAST_REQUESTS
) -> bool:
    """True if at least `requests` requests show whether the objective is met."""
    if latency is None or objective is None or latency.over_slo is None:
        return False
    return latency.count + latency.overdue >= requests


def late_share(latency: Latency) -> float:
    """Share of late requests, with those that still wait and are late already."""
    count = latency.count + latency.overdue
    return ((latency.over_slo or 0.0) * latency.count + latency.overdue) / count if count else 0.0


def misses_objective(
    latency: Latency | None, objective: Objective | None, requests: float = LEAST_REQUESTS
) -> bool:
    """True if, of at least `requests` requests, more are late than chance explains if it holds.

    A one-sided binomial test by Chernoff's bound, P <= exp(-n KL(late share, allowed share)). Requests that
    are late together count as fewer: n is divided by the design effect.
    """
    if latency is None or objective is None or not is_measured(latency, objective, requests):
        return False
    late, allowed = late_share(latency), 1 - objective.share
    if late <= allowed:
        return False
    if allowed <= 0:
        return True
    distance = late * log(late / allowed)
    distance += (1 - late) * log((1 - late) / (1 - allowed)) if late < 1 else 0.0
    return (latency.count + latency.overdue) / latency.clumping * distance > -log(UNLIKELY)


def has_need(reading: Reading, slo: Slo, requests: float = LEAST_REQUESTS) -> bool:
    """True if an objective is missed, or none is set: an optimisation has something to gain."""
    pairs = ((reading.ttft, slo.ttft), (reading.itl, slo.itl), (reading.e2e, slo.e2e))
    unset = all(objective is None for _, objective in pairs)
    return unset or any(misses_objective(latency, objective, requests) for latency, objective in pairs)
