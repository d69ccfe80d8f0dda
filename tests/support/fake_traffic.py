"""An in-memory proxy: keeps the split, expires the lease in loop time, fails on demand."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flettner.actuators.shared.split import check, without_lease
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site, TrafficSeen


@dataclass
class _Proxy:
    """The state that survives its bound actuators."""

    route: Route | None = None
    epoch: int = 0
    expires_s: float = 0.0
    running: bool = True


@dataclass
class FakeTraffic:
    """`calls` has every route and keep_alive that was asked, in order; `next_error` fails the next one once.

    `in_flight_of` is what `in_flight` answers for a server; `takes_s` how long a route takes.
    """

    found_problems: Sequence[str] = ()
    takes_s: float = 0.0
    site: Site | None = None
    next_error: ActError | None = None
    calls: list[tuple[str, Route]] = field(default_factory=list)
    in_flight_of: dict[str, int | None] = field(default_factory=dict)
    proxies: dict[Path, _Proxy] = field(default_factory=dict)
    counts_requests: bool = True
    hold: Hold | None = None
    settled: bool = True

    def bind(self, site: Site) -> "FakeTraffic":
        """Shares the calls, the errors and the proxies of this one."""
        return _Bound(parent=self, site=site)

    @property
    def proxy(self) -> _Proxy:
        if self.site is None:
            raise ActError("this proxy has no site: bind() it first")
        return self.proxies.setdefault(self.site.state_dir, _Proxy())

    @property
    def weights_in_force(self) -> dict[str, int]:
        """The weights in force: an expired share goes to the other servers; empty if closed."""
        proxy = self.proxy
        if proxy.route is None or not proxy.running:
            return {}
        spent = proxy.route.leased and asyncio.get_running_loop().time() > proxy.expires_s
        route = without_lease(proxy.route) if spent else proxy.route
        return {name: weight for name, weight in route.weights.items() if weight}

    async def problems(self) -> Sequence[str]:
        return self.found_problems

    async def observe(self) -> TrafficSeen | None:
        proxy = self.proxy
        if proxy.route is None:
            return None
        return TrafficSeen(
            weights=dict(proxy.route.weights),
            addresses={server.name: server.address for server in proxy.route.servers},
            epoch=proxy.epoch,
            leased=proxy.route.leased,
            listening=proxy.running,
        )

    async def route(self, route: Route) -> None:
        self.calls.append(("route", route))
        check(route)
        await asyncio.sleep(self.takes_s)
        self._write(route)

    async def keep_alive(self, route: Route) -> None:
        self.calls.append(("keep_alive", route))
        check(route)
        proxy = self.proxy
        later = proxy.route is not None and proxy.route.number > route.number
        if self.site and later and proxy.epoch == self.site.epoch:
            return
        self._write(route)

    async def end_lease(self) -> bool:
        proxy = self.proxy
        if proxy.route is None or proxy.route.leased is None:
            return False
        proxy.expires_s = 0.0
        return True

    def _write(self, route: Route) -> None:
        proxy = self.proxy
        epoch = self.site.epoch if self.site else 0
        if proxy.epoch > epoch:
            raise FencedError(f"the proxy has epoch {proxy.epoch}, this daemon {epoch}")
        if error := self._error():
            raise error
        proxy.route, proxy.epoch, proxy.running = route, epoch, True
        proxy.expires_s = asyncio.get_running_loop().time() + route.lease_s

    def _error(self) -> ActError | None:
        error, self.next_error = self.next_error, None
        return error

    async def in_flight(self, server: str) -> int | None:
        if self.proxy.route is None or not self.proxy.running:
            return None
        return self.in_flight_of.get(server, 0)

    async def is_settled(self) -> bool:
        return self.settled

    async def stop(self) -> None:
        self.proxy.running = False


class _Bound(FakeTraffic):
    def __init__(self, *, parent: FakeTraffic, site: Site) -> None:
        super().__init__(parent.found_problems, parent.takes_s, site)
        self._parent = parent
        self.counts_requests = parent.counts_requests
        self.calls, self.in_flight_of, self.proxies = parent.calls, parent.in_flight_of, parent.proxies

    def _error(self) -> ActError | None:
        return super()._error() or self._parent._error()
