"""Follows the published routes of all targets. While the API server is away, the last ones stay."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from flettner.actuators.shared.published_route import PROXY, PublishedRoute
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.mirror import PROMPT

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class RouteFollower:
    """Calls `on_route` with each route, also with a known one, and `on_removed` with the name of a target."""

    client: KubernetesClient
    deployment: str
    on_route: Callable[[PublishedRoute], None]
    on_removed: Callable[[str], None]
    unreadable: dict[str, str] = field(default_factory=dict, init=False)  # why, by the ConfigMap's name
    complete: bool = field(default=False, init=False)  # every route that was there at the start is known
    _away: bool = field(default=False, init=False)
    _targets: dict[str, str] = field(default_factory=dict, init=False)  # by the ConfigMap's name

    async def run(self) -> None:
        mirror = self.client.mirror(kubernetes.CONFIG_MAP, {PROXY: self.deployment}, PROMPT)
        async for _ in mirror.changes({}):
            try:
                self._follow(await mirror.read())
            except ActError as error:
                if not self._away:
                    log.warning("routes.not_followed", why=error.why)
                self._away = True

    def _follow(self, documents: Mapping[str, Json]) -> None:
        if self._away:
            log.info("routes.followed_again")
        self._away, self.complete = False, True
        for document in documents.values():
            self._take(document)
        for name in (self._targets.keys() | self.unreadable.keys()) - documents.keys():
            self._remove(name)

    def _take(self, document: Json) -> None:
        name = document["metadata"]["name"]
        try:
            route = PublishedRoute.parse(document)
        except ValueError as error:
            if name not in self.unreadable:
                log.warning("route.unreadable", config_map=name, why=str(error))
            self.unreadable[name] = str(error)
        else:
            self.unreadable.pop(name, None)
            self._targets[name] = route.target
            self.on_route(route)

    def _remove(self, name: str) -> None:
        self.unreadable.pop(name, None)
        if (target := self._targets.pop(name, None)) is not None:
            log.warning("route.removed", config_map=name, target=target)
            self.on_removed(target)
