"""The daemon's port to the simulated proxy."""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site, Traffic, TrafficSeen
from tests.simulation.adapters import LATE_S, Host, Killed, alive, call, fenced, wait
from tests.simulation.world import Split


@dataclass(repr=False, slots=True)
class SimTraffic:
    """The proxy of the world."""

    host: Host
    counts_requests: bool = True
    hold: Hold | None = None

    def bind(self, site: Site) -> Traffic:
        del site
        return self

    async def problems(self) -> Sequence[str]:
        return ()

    async def observe(self) -> TrafficSeen | None:
        await wait(self.host, 0.05)
        split = self.host.world.split
        if split is None:
            return None
        return TrafficSeen(
            weights=dict(split.weights),
            addresses=dict(split.addresses),
            epoch=split.epoch,
            leased=split.leased,
            listening=self.host.world.proxy_up,
        )

    async def route(self, route: Route) -> None:
        await self._write("route", route)

    async def keep_alive(self, route: Route) -> None:
        split = self.host.world.split
        if split is not None and split.epoch == self.host.epoch and split.number > route.number:
            return
        await self._write("keep_alive", route)

    async def end_lease(self) -> bool:
        return False  # systemd's: no daemon asks for it

    async def _write(self, kind: str, route: Route) -> None:
        wrong = await call(
            self.host,
            kind,
            "",
            lambda: self._put(route),
            (0.02, 0.3),
            route=route,
            fence=self._fence,
        )
        if wrong:
            raise ActError(f"{kind}: Envoy says nothing that can be read")

    def _put(self, route: Route) -> None:
        world = self.host.world
        there = world.split
        if there is not None and (there.epoch, there.number) > (self.host.epoch, route.number):
            return  # a late older write
        split = Split(
            epoch=self.host.epoch,
            number=route.number,
            weights=dict(route.weights),
            addresses={server.name: server.address for server in route.servers},
            fallback=route.fallback,
            leased=route.leased,
            closed_s=route.closed_s,
        )
        world.tell_proxy(split, route.lease_s)

    def _fence(self) -> None:
        split = self.host.world.split
        fenced(split.epoch if split else 0, self.host.epoch)

    async def in_flight(self, server: str) -> int | None:
        alive(self.host)
        fault = self.host.fault("drain")
        what = fault.what if fault else ""
        if what == "crash before":
            self.host.kill()
            raise Killed
        self.host.called("drain", server, None)
        if what in {"late", "stuck", "reply lost"}:
            await wait(self.host, LATE_S)
        if what == "crash after":
            self.host.kill()
            raise Killed
        if what in {"refused", "failed but done", "stuck", "reply lost"}:
            raise ActError("the proxy's counters cannot be read")
        if what == "wrong":
            return 7
        return self.host.world.open_at(server) if self.host.world.proxy_up else None

    async def is_settled(self) -> bool:
        alive(self.host)
        return self.host.world.is_settled()

    async def stop(self) -> None:
        raise AssertionError("the machine never asks for this")
