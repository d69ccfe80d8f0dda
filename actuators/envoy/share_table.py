"""The hundredths of the traffic of each server: at the first try, at a retry, and after the lease.

The proxy gives each request a number from 0 to 99, keeps it over all tries, and gives a session the same
number again. The lists of one split therefore match: at the position of one server, the other list has the
server that takes over, and all other sessions stay.
"""

from itertools import chain

from flettner.actuators.shared.split import spread, without_lease
from flettner.agent.domain.effects import Route

ShareRange = tuple[str, int]  # a server's name, and how many hundredths


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
        parts += [*spread(own, remaining).items(), (name, lent)]
    return tuple((name, part) for name, part in parts if part)


def _parts(route: Route) -> list[tuple[str, int, int]]:
    """For each remaining server, the fallback first: name, own hundredths and lent hundredths."""
    whole = without_lease(route).weights
    ordered = sorted((name for name in whole if whole[name]), key=lambda name: (name != route.fallback, name))
    own = {name: route.weights.get(name, 0) for name in ordered}
    return [(name, own[name], whole[name] - own[name]) for name in ordered]
