"""Follows the requests of one HTTPRoute in the access logs of its gateways."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from flettner.agent.domain.errors import ActError, SensorError
from flettner.agent.domain.ports import View
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.sensors.proxy_requests.gateway_records import (
    Attributes,
    RouteNames,
    ServerAddresses,
    has_lost_its_server,
    read_record,
)
from flettner.sensors.proxy_requests.inbox import SourceCondition, TargetInbox
from flettner.sensors.proxy_requests.otlp_receiver import subscribed_to_otlp
from flettner.sensors.shared.addresses import resolve

LOOK_S = 1.0  # between two looks for the addresses of pods
MOST = 20_000  # records that wait for a look


@asynccontextmanager
async def subscribed_to_gateways(
    listen: str, names: RouteNames, view: View, inbox: TargetInbox
) -> AsyncIterator["GatewayFollower"]:
    """Raises OSError if the address cannot be opened."""
    follower = GatewayFollower(names, view, inbox)
    async with subscribed_to_otlp(listen, view.target, follower):
        follower.task = asyncio.create_task(follower.follow(), name=f"{view.target} records of gateways")
        try:
            yield follower
        finally:
            follower.task.cancel()
            await asyncio.wait({follower.task})


async def name_routes(client: KubernetesClient, route: str, rule: str) -> RouteNames:
    """Raises OSError if the namespace is not known."""
    try:
        return RouteNames(namespace=await client.own_namespace(), route=route, rule=rule)
    except ActError as error:
        raise OSError(error.why) from error


@dataclass(slots=True)
class GatewayFollower:
    """A record waits for the next look: the server of a pod that has just started is known then."""

    names: RouteNames
    view: View
    inbox: TargetInbox
    task: asyncio.Task[None] | None = None
    _addresses: ServerAddresses = field(default_factory=ServerAddresses)
    _waiting: deque[Attributes] = field(default_factory=deque)
    _has_records: bool = False  # a record of this HTTPRoute has come

    def state(self) -> SourceCondition:
        if self.task is not None and self.task.done():
            self.task.result()  # it ends by an error only
        return (True, "gateways send records") if self._has_records else None

    def receive(self, attributes: Attributes) -> None:
        if not self.names.include(attributes.get("route_name", "")):
            return
        self._has_records = True
        if len(self._waiting) >= MOST:
            self.inbox.lose(f"more than {MOST} records in {LOOK_S:g} s")
            return
        self._waiting.append(attributes)

    async def follow(self) -> None:
        while True:
            waiting = len(self._waiting)  # others may come while names are resolved
            await self._look()
            for _ in range(waiting):
                self._count(self._waiting.popleft())
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        for server in self.view.servers():
            with suppress(OSError, SensorError):
                addresses = await resolve(server.address)
                self._addresses.update(
                    server.name, server.address, addresses, asyncio.get_running_loop().time()
                )

    def _count(self, attributes: Attributes) -> None:
        try:
            record = read_record(attributes, self._addresses)
        except SensorError as error:
            self.inbox.count_unreadable(error)
            return
        if not self.inbox.counts(record):
            return
        if has_lost_its_server(record, attributes):
            host = attributes.get("upstream_host", "-")
            self.inbox.lose(f"a request with code {record.code} is of no known server (address {host})")
        elif record.server:
            self.inbox.requests.add_ended(record)
