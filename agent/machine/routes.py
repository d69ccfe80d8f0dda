"""Splits of a target's traffic. Pure arithmetic over servers; each route holds the full split."""

from collections.abc import Sequence

from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Server

CLOSED_S = 30.0  # Retry-After of a closed route whose duration is unknown


def equal_shares(servers: Sequence[Server], of: int = 100) -> dict[str, int]:
    """`of` percent in equal parts for each replica; the first servers get the remainder."""
    replicas = sum(server.replicas for server in servers)
    parts = [of * server.replicas // replicas for server in servers]
    rest = of - sum(parts)
    return {
        server.name: part + (at < rest) for at, (server, part) in enumerate(zip(servers, parts, strict=True))
    }


def route_to(servers: Sequence[Server], *idle: Server, closed_s: float = 0.0) -> Route:
    """All traffic to `servers`; `idle` servers stay known to the proxy, so that their open requests go on.

    Without servers the route is closed: clients get 503 with a Retry-After of `closed_s`.
    """
    servers_by_name = {server.name: server for server in (*servers, *idle)}
    return Route(
        number=0,
        servers=tuple(servers_by_name.values()),
        weights={**dict.fromkeys(servers_by_name, 0), **equal_shares(servers)},
        fallback=servers[0].name if servers else "",
        closed_s=0.0 if servers else closed_s or CLOSED_S,
    )


def split_route(running: Sequence[Server], green: Server, weight: int, lease_s: float) -> Route:
    """Green's share, on a lease: without renewal it returns to the old servers."""
    if not running:
        return route_to((green,))
    return Route(
        number=0,
        servers=(*running, green),
        weights={**equal_shares(running, 100 - weight), green.name: weight},
        fallback=running[0].name,
        leased=green.name,
        lease_s=lease_s,
    )


def route_without(route: Route, exited: Sequence[str]) -> Route | None:
    """The route without the servers in `gone`, whose shares go to the rest; None if no server remains."""
    left = [s for s in route.servers if s.name not in exited and route.weights.get(s.name, 0)]
    if not left:
        return None
    leased = route.leased if route.leased in {server.name for server in left} else None
    if leased is not None and len(left) == 1:
        leased = None  # no other server is left that its share could return to
    weights_left = {server.name: route.weights[server.name] for server in left}
    missing = 100 - sum(weights_left.values())
    receivers = [server for server in left if server.name != leased] or left
    weights = {
        name: weight + equal_shares(receivers, missing).get(name, 0) for name, weight in weights_left.items()
    }
    idle = {s.name: 0 for s in route.servers if s.name not in exited and s.name not in weights}
    return Route(
        number=0,
        servers=tuple(s for s in route.servers if s.name not in exited),
        weights={**weights, **idle},
        fallback=receivers[0].name,
        leased=leased,
        lease_s=route.lease_s if leased else 0.0,
    )
