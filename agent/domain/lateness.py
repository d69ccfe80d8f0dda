"""Whether late requests prove that an objective is missed. Pure.

A share is tested, not compared: 2 late requests of 35 say nothing against an allowed 5 %.
"""

from math import log

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Latency, Reading

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

    Requests that are late together count as fewer: their number is divided by the design effect.
    """
    if latency is None or objective is None or not is_measured(latency, objective, requests):
        return False
    of = (latency.count + latency.overdue) / latency.clumping
    return exceeds_share(late_share(latency), 1 - objective.share, of)


def exceeds_share(share: float, allowed: float, of: float) -> bool:
    """True if chance does not explain so large a share of `of` requests where `allowed` holds.

    A one-sided binomial test by Chernoff's bound, P <= exp(-n KL(share, allowed)).
    """
    if share <= allowed:
        return False
    if allowed <= 0:
        return True
    distance = share * log(share / allowed)
    distance += (1 - share) * log((1 - share) / (1 - allowed)) if share < 1 else 0.0
    return of * distance > -log(UNLIKELY)


def misses_any(reading: Reading, slo: Slo, requests: float = LEAST_REQUESTS) -> bool:
    """True if one of the objectives is missed."""
    pairs = ((reading.ttft, slo.ttft), (reading.itl, slo.itl), (reading.e2e, slo.e2e))
    return any(misses_objective(latency, objective, requests) for latency, objective in pairs)


def describe_no_need(reading: Reading, slo: Slo) -> str:
    """Why an optimisation is not needed, where `has_need` is false."""
    pairs = ((reading.ttft, slo.ttft), (reading.itl, slo.itl), (reading.e2e, slo.e2e))
    if any(is_measured(latency, objective) for latency, objective in pairs):
        return "no objective is missed: an optimisation has nothing to gain"
    return f"fewer than {LEAST_REQUESTS} requests show whether an objective is missed"


def has_need(reading: Reading, slo: Slo, requests: float = LEAST_REQUESTS) -> bool:
    """True if an objective is missed, or none is set: an optimisation has something to gain."""
    unset = all(objective is None for objective in (slo.ttft, slo.itl, slo.e2e))
    return unset or misses_any(reading, slo, requests)
