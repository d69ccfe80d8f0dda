"""A split as the machine asks for it: whether it can be carried out, and what its lease leaves. Pure."""

import math
from collections.abc import Mapping
from dataclasses import replace

from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError

PERCENT = 100


def check(route: Route) -> None:
    """Raises ActError unless the proxy can carry the split unchanged."""
    asked = f"route {route.number}"
    weights = route.weights
    wrong = [f"{name}: {weight!r}" for name, weight in weights.items() if not _is_percent(weight)]
    if wrong:
        raise ActError(f"{asked}: a weight is an integer from 0 to 100, not {', '.join(wrong)}")
    if route.closed_s:
        _check_closed(route, asked)
    elif (total := sum(weights.values())) != PERCENT:
        raise ActError(f"{asked}: the weights sum to {total}, not to 100")
    names = [server.name for server in route.servers]
    named = {*weights, *(() if route.closed_s else (route.fallback,)), *filter(None, (route.leased,))}
    if missing := sorted(named - set(names)):
        raise ActError(f"{asked} names {', '.join(missing)}; its servers are {', '.join(names) or 'none'}")
    if len(set(names)) < len(names):
        raise ActError(f"{asked} has two servers of one name: {', '.join(names)}")
    if route.leased:
        _check_lease(route, asked)


def _check_closed(route: Route, asked: str) -> None:
    if not (route.closed_s > 0 and math.isfinite(route.closed_s)):
        raise ActError(f"{asked}: it is closed for seconds above 0, not {route.closed_s}")
    if route.weights != dict.fromkeys((server.name for server in route.servers), 0):
        raise ActError(f"{asked} is closed: each server's weight is 0, not {dict(route.weights)}")
    if route.fallback or route.leased is not None:
        raise ActError(
            f"{asked} is closed: it has no fallback and no lease, not {route.fallback!r} and {route.leased!r}"
        )


def _check_lease(route: Route, asked: str) -> None:
    if route.leased == route.fallback:
        raise ActError(f"{asked}: the lease of {route.leased} would end on {route.leased} itself")
    if not (route.lease_s > 0 and math.isfinite(route.lease_s)):
        raise ActError(f"{asked}: a lease takes seconds above 0, not {route.lease_s}")


def _is_percent(weight: object) -> bool:
    return isinstance(weight, int) and not isinstance(weight, bool) and 0 <= weight <= PERCENT


def without_lease(route: Route) -> Route:
    """The split without the leased server: the remaining servers share by their weights.

    If none of them has a weight, the fallback has all of it.
    """
    if not route.leased:
        return route
    staying = {name: weight for name, weight in route.weights.items() if weight and name != route.leased}
    given = spread(route.weights.get(route.leased, 0), staying or {route.fallback: 1})
    names = dict.fromkeys([*route.weights, route.fallback])
    weights = {name: staying.get(name, 0) + given.get(name, 0) for name in names}
    return replace(route, weights=weights, leased=None, lease_s=0.0)


def spread(hundredths: int, over: Mapping[str, int]) -> dict[str, int]:
    """Integers as near to the weights as possible; of equal weights the first in order gets more."""
    total = sum(over.values())
    shares = {name: hundredths * weight // total for name, weight in over.items()}
    rest = sorted(over, key=lambda name: -(hundredths * over[name] % total))
    for name in rest[: hundredths - sum(shares.values())]:
        shares[name] += 1
    return shares
