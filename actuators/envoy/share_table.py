"""The hundredths of the traffic of each server: at the first try, at a retry, and after the lease.

The proxy gives each request a number from 0 to 99, keeps it over all tries, and gives a session the same
number again. The lists of one split therefore match: at the position of one server, the other list has the
server that takes over, and all other sessions stay.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from agent.domain.effects import Route

ShareRange = tuple[str, int]  # a server's name, and how many hundredths


def without_lease(route: Route) -> Route:
    """The split without the leased server: the remaining servers share by their weights.

    If none of them has a weight, the fallback has all of it.
    """
    if not route.leased:
        return route
    staying = {name: weight for name, weight in route.weights.items() if weight and name != route.leased}
    given = _spread(route.weights.get(route.leased, 0), staying or {route.fallback: 1})
    names = dict.fromkeys([*route.weights, route.fallback])
    weights = {name: staying.get(name, 0) + given.get(name, 0) for name in names}
    return replace(route, weights=weights, leased=None, lease_s=0.0)


def first_tries(route: Route) -> tuple[ShareRange, ...]:
    """The split itself.

    The leased share comes from the end of each part, so that a growing share only adds sessions.
    """
    both = (((name, own), (route.leased or name, lent)) for name, own, lent in _parts(route))
    return tuple((name, part) for name, part in chain.from_iterable(both) if part)


def second_tries(route: Route) -> tuple[ShareRange, ...]:
    """The remaining servers instead of a failed one, by their weights; never the leased one."""
    staying = [(name, own + lent) for name, own, lent in _parts(route)]
    parts: list[ShareRange] = []
    for place, (name, own, lent) in enumerate(_parts(route)):
        # from the next one on: many servers of small parts must not all name the first few
        remaining = dict(staying[place + 1 :] + staying[:place]) or {route.fallback: 1}
        parts += [*_spread(own, remaining).items(), (name, lent)]
    return tuple((name, part) for name, part in parts if part)


def _parts(route: Route) -> list[tuple[str, int, int]]:
    """For each remaining server, the fallback first: name, own hundredths and lent hundredths."""
    whole = without_lease(route).weights
    ordered = sorted((name for name in whole if whole[name]), key=lambda name: (name != route.fallback, name))
    own = {name: route.weights.get(name, 0) for name in ordered}
    return [(name, own[name], whole[name] - own[name]) for name in ordered]


def _spread(hundredths: int, over: Mapping[str, int]) -> dict[str, int]:
    """Integers as near to the weights as possible; of equal weights the first in order gets more."""
    total = sum(over.values())
    shares = {name: hundredths * weight // total for name, weight in over.items()}
    rest = sorted(over, key=lambda name: -(hundredths * over[name] % total))
    for name in rest[: hundredths - sum(shares.values())]:
        shares[name] += 1
    return shares
