"""Keeps the newest published route of one target in force in this pod's Envoy."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from flettner.actuators.shared.published_route import PublishedRoute
from flettner.actuators.shared.split import without_lease
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Traffic
from flettner.agent.retrying import retry

log = structlog.get_logger(__name__)

_RETRY_S = 1.0  # after a route that Envoy does not take


@dataclass(slots=True, kw_only=True)
class PodTarget:
    """`proxy`: the Envoy of this pod, with the listener of a route.

    The lease of a route begins when this pod sees a new write of it, by the clock of this pod. The first one
    that it sees may be old, of a daemon that is gone: its lease counts as ended until the next write.
    """

    proxy: Callable[[PublishedRoute], Traffic]
    in_force: PublishedRoute | None = field(default=None, init=False)
    refused: PublishedRoute | None = field(default=None, init=False)
    why: str = field(default="", init=False)  # `refused` is not in force
    managed: bool = field(default=False, init=False)  # the route is still published
    _serving: Traffic | None = field(default=None, init=False)  # with the route in force
    _wanted: PublishedRoute | None = field(default=None, init=False)
    _lease_since_s: float | None = field(default=None, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def take(self, route: PublishedRoute) -> None:
        """Put the route in force, in place of one that is not yet in force. Again the same write: nothing."""
        self.managed = True
        if self._wanted is not None and self._wanted.write == route.write:
            return
        first = self._wanted is None
        self._lease_since_s = None if first else asyncio.get_running_loop().time()
        self._wanted = route
        self._changed.set()

    def release(self) -> None:
        """The route is no longer published: requests go on as before."""
        self.managed = False

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            applying = AsyncRetrying(retry=retry_if_exception_type(ActError), wait=wait_fixed(_RETRY_S))
            await retry(applying, self._apply)

    async def _apply(self) -> None:
        """Raises ActError if Envoy does not take the newest route."""
        self._changed.clear()
        wanted = self._wanted
        if wanted is None:
            return
        proxy = self.proxy(wanted)
        try:
            await proxy.route(self._with_lease_left(wanted))
        except ActError as error:
            if self.refused is not wanted:
                log.warning("route.refused", target=wanted.target, write=wanted.write, why=error.why)
            self.refused, self.why = wanted, error.why
            raise
        self.in_force, self._serving, self.refused, self.why = wanted, proxy, None, ""

    def _with_lease_left(self, wanted: PublishedRoute) -> Route:
        route = wanted.route
        if route.leased is None:
            return route
        if wanted.lease_ended or self._lease_since_s is None:
            return without_lease(route)
        left_s = route.lease_s - (asyncio.get_running_loop().time() - self._lease_since_s)
        return replace(route, lease_s=left_s) if left_s > 0 else without_lease(route)

    async def in_flight(self, server: str) -> int | None:
        if self._serving is None or not self.managed:
            return None
        return await self._serving.in_flight(server)

    async def is_settled(self) -> bool:
        return self._serving is not None and await self._serving.is_settled()

    async def is_listening(self) -> bool:
        if self._serving is None:
            return False
        seen = await self._serving.observe()
        return seen is not None and seen.listening
