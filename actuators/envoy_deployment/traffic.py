"""The bound proxy: publishes the routes of one target, and waits until the Envoy pods have them in force."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar
from uuid import uuid4

from flettner.actuators.envoy_deployment.channel import RouteChannel, RouteConfigMap
from flettner.actuators.envoy_deployment.options import EnvoyDeploymentOptions
from flettner.actuators.envoy_deployment.pods import EnvoyPods, RouteRefusedError
from flettner.actuators.shared.published_route import PublishedRoute
from flettner.actuators.shared.split import check
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site, TrafficSeen
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.deployment_pods import DeploymentPods
from flettner.clients.kubernetes.errors import AwayError, MissingError

THIS_PROCESS = uuid4().hex

_LOOK_S = 60.0
"""Between two looks at a ConfigMap without a lease: so long a third party's deletion of it stays unnoticed,
while the pods serve on. A look is one read of the API server."""

RENEWED_WITHIN = 1 / 3
"""Of a lease: it is renewed when so much is spent, and that may take as long, so that it is over before the
lease is. The daemon asks once a second."""


class DeploymentTraffic:
    """The routes of one target, for the Envoys of one Deployment."""

    counts_requests: ClassVar[bool] = True

    def __init__(self, options: EnvoyDeploymentOptions, site: Site) -> None:
        self._options = options
        self._site = site
        self._client = options.client()
        self._channel = RouteChannel(
            client=self._client,
            deployment=options.deployment,
            target=site.target,
            epoch=site.epoch,
            process=THIS_PROCESS,
        )
        self._pods = EnvoyPods(
            DeploymentPods(client=self._client, deployment=options.deployment), site.target
        )
        self._kept: tuple[Route, float] | None = (
            None  # published, and the loop time of the last write or look
        )
        self._turn = asyncio.Lock()

    @property
    def listen(self) -> str:
        return self._options.listen

    @property
    def hold(self) -> Hold | None:
        return self._options.hold

    async def problems(self) -> Sequence[str]:
        try:
            await self._pods.ask()
            if self._site.acts:
                await self._channel.check_writable()
        except MissingError:
            name = self._options.deployment
            return [f"there is no Deployment {name} of Envoys: create it as examples/kubernetes.yaml does"]
        except AwayError:
            pass  # says nothing about the configuration; a daemon waits for the API server
        return []

    async def observe(self) -> TrafficSeen | None:
        """Without weights if a third party has changed the ConfigMap; the next route replaces it."""
        config_map = await self._channel.read()
        if config_map is None:
            return None
        listening = await self._is_listening()
        published = config_map.route
        if published is None:
            return TrafficSeen(weights={}, addresses={}, epoch=0, listening=listening)
        return TrafficSeen(
            weights=published.route.weights,
            addresses={server.name: server.address for server in published.route.servers},
            epoch=published.epoch,
            leased=published.route.leased,
            listening=listening,
        )

    async def _is_listening(self) -> bool:
        with suppress(MissingError):
            return any(answer.listening for answer in await self._pods.ask())
        return False

    async def route(self, route: Route) -> None:
        check(route)
        async with self._turn:
            await self._route(route, await self._channel.claim())

    async def _route(self, route: Route, before: RouteConfigMap | None) -> None:
        """A route that is not confirmed stays published: pods that are cut off take it when they are back."""
        published = self._publication(route)
        written = await self._write(published, before)
        try:
            await self._pods.confirm(published.write, self._options.confirm_s)
        except RouteRefusedError:
            self._kept = None
            await self._channel.restore(before.route if before else None, written)
            raise

    def _publication(self, route: Route) -> PublishedRoute:
        return PublishedRoute(
            target=self._site.target,
            epoch=self._channel.epoch,
            process=self._channel.process,
            listen=self._options.listen,
            session_header=self._options.session_header,
            report_every_s=self._options.report_every_s,
            open_routes=self._options.open_routes,
            hold=self._options.hold,
            route=route,
        ).renewed()

    async def _write(self, published: PublishedRoute, config_map: RouteConfigMap | None) -> RouteConfigMap:
        began_s = asyncio.get_running_loop().time()
        written = await self._channel.write(published, config_map)
        self._kept = (published.route, began_s)
        return written

    async def keep_alive(self, route: Route) -> None:
        """Publish a route that is missing, unless a later one of this daemon is there; renew a lease."""
        check(route)
        async with self._turn:
            if self._is_kept(route):
                return
            async with asyncio.timeout(route.lease_s * RENEWED_WITHIN if route.leased else None):
                config_map = await self._channel.claim()
                published, wanted = config_map.route if config_map else None, self._publication(route)
                ours = published is not None and published.epoch == wanted.epoch
                if published is not None and ours and published.route.number > route.number:
                    return
                if published is not None and published.carries(wanted):
                    if route.leased or not ours:
                        await self._write(wanted, config_map)
                    self._kept = (route, asyncio.get_running_loop().time())
                    return
            await self._route(route, config_map)

    def _is_kept(self, route: Route) -> bool:
        """Whether neither a renewal nor a look is due."""
        if self._kept is None or self._kept[0] != route:
            return False
        due_s = route.lease_s * RENEWED_WITHIN if route.leased else _LOOK_S
        return asyncio.get_running_loop().time() < self._kept[1] + due_s

    async def end_lease(self) -> bool:
        """Publish the same route with an ended lease, in the name of the daemon that has stopped."""
        async with self._turn:
            config_map = await self._channel.read()
            published = config_map.route if config_map else None
            if (
                config_map is None
                or published is None
                or published.route.leased is None
                or published.lease_ended
            ):
                return False
            stopped = RouteChannel(
                client=self._client,
                deployment=self._options.deployment,
                target=self._site.target,
                epoch=published.epoch,
                process=published.process,
            )
            ended = published.ended()
            await stopped.write(ended, config_map)
            await self._pods.confirm(ended.write, self._options.confirm_s)
            return True

    async def in_flight(self, server: str) -> int | None:
        """The sum over all pods, those that end included; None if a ready one does not answer.

        A pod that is neither ready nor answers has lost its connections; the engine counts what is left.
        """
        try:
            answers = await self._pods.ask(server, stale=True)
        except ActError:
            return None
        counts = [answer.open for answer in answers if answer.pod.ready or answer.open is not None]
        if not counts or None in counts:
            return None
        return sum(count for count in counts if count is not None)

    async def is_settled(self) -> bool:
        try:
            answers = await self._pods.ask(stale=True)
        except ActError:
            return False
        return all(answer.settled for answer in answers if answer.pod.ready)

    async def clear(self) -> Sequence[str]:
        """Remove the route; return what was done. The pods that run serve on by their last one."""
        async with self._turn:
            if await self._channel.read() is None:
                return []
            await self._channel.remove()
            return [f"the ConfigMap {self._channel.name} is removed"]

    async def stop(self) -> None:
        """Remove the route and end the Envoys of all targets, for tests and demos."""
        async with self._turn:
            await self._channel.remove()
            with suppress(MissingError):
                await self._client.patch(
                    kubernetes.DEPLOYMENT, self._options.deployment, {"spec": {"replicas": 0}}
                )
