"""The gateway plugin in the process of a test, over servers at any address."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from flettner.actuators.gateway.guard import Guard
from flettner.actuators.gateway.plugin import GatewayOptions
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site, Traffic, TrafficSeen
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.primitives.wall_clock import utc_now
from tests.support.gateway.stand_in import Gateway
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import Namespace

ROUTE, HOME = "chat", "people"


@dataclass
class GatewayRig:
    """`async with GatewayRig(cluster) as rig`: a namespace, a gateway, an HTTPRoute `chat`, and the guard."""

    cluster: Cluster
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    names: dict[str, str] = field(default_factory=dict)  # of the Services that stand for servers, by address

    async def __aenter__(self) -> Self:
        try:
            return await self._start()
        except BaseException:
            await self.stack.aclose()
            raise

    async def _start(self) -> Self:
        self.here = await self.stack.enter_async_context(Namespace(self.cluster))
        self.gateway = await self.stack.enter_async_context(Gateway(self.here, lag_s=0.05))
        spec = {"selector": {"app": "none"}, "ports": [{"port": 80, "targetPort": 8000}]}
        await self.here.create("services", {"metadata": {"name": HOME}, "spec": spec})
        await self.gateway.create(ROUTE, {"backendRefs": [{"name": HOME, "port": 80}]})
        self.kubeconfig = str(self.cluster.kubeconfig(namespace=self.here.name))
        client = KubernetesClient(kubeconfig=self.kubeconfig)
        self.stopping = asyncio.Event()
        self.guard = asyncio.create_task(Guard(client=client, now=utc_now, beat_s=0.2).run(self.stopping))
        self.stack.push_async_callback(self._end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stack.aclose()

    async def _end(self) -> None:
        self.stopping.set()
        await self.guard

    def bind(self, site: Site) -> "PlacedTraffic":
        options = GatewayOptions(route=ROUTE, kubeconfig=self.kubeconfig, settle_s=0.5)
        return PlacedTraffic(rig=self, inner=options.bind(site))

    async def placed(self, route: Route) -> Route:
        """With a Service for each server, whose endpoint is at the server's address."""
        for server in route.servers:
            if server.address not in self.names.values():
                await self._create_service(
                    f"at-{server.address.replace('.', '-').replace(':', '-')}", server.address
                )
        by_address = {address: name for name, address in self.names.items()}
        servers = tuple(
            replace(listed, address=f"{by_address[listed.address]}.{self.here.name}.svc:80")
            for listed in route.servers
        )
        return replace(route, servers=servers)

    async def _create_service(self, name: str, address: str) -> None:
        """Endpoints may not be of 127.0.0.0/8: servers there are reached at this host's address as well."""
        host, _, port = address.partition(":")
        host = self.cluster.network.address if host == "127.0.0.1" else host
        spec = {"clusterIP": "None", "ports": [{"port": 80}]}
        await self.here.create("services", {"metadata": {"name": name}, "spec": spec})
        subset = {"addresses": [{"ip": host}], "ports": [{"port": int(port)}]}
        await self.here.create("endpoints", {"metadata": {"name": name}, "subsets": [subset]})
        self.names[name] = address


@dataclass
class PlacedTraffic:
    """The plugin, with the servers' Services made as they come."""

    rig: GatewayRig
    inner: Traffic

    @property
    def counts_requests(self) -> bool:
        return self.inner.counts_requests

    @property
    def hold(self) -> Hold | None:
        return self.inner.hold

    @property
    def listen(self) -> str:
        return self.rig.gateway.listen

    async def problems(self) -> Sequence[str]:
        return await self.inner.problems()

    async def observe(self) -> TrafficSeen | None:
        seen = await self.inner.observe()
        if seen is None:
            return None
        addresses = {
            name: self.rig.names[address.partition(".")[0]] for name, address in seen.addresses.items()
        }
        return replace(seen, addresses=addresses)

    async def route(self, route: Route) -> None:
        await self.inner.route(await self.rig.placed(route))

    async def keep_alive(self, route: Route) -> None:
        await self.inner.keep_alive(await self.rig.placed(route))

    async def end_lease(self) -> bool:
        return await self.inner.end_lease()

    async def in_flight(self, server: str) -> int | None:
        return await self.inner.in_flight(server)

    async def is_settled(self) -> bool:
        return await self.inner.is_settled()

    async def stop(self) -> None:
        await self.inner.stop()
