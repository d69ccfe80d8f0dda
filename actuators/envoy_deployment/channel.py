"""The ConfigMap of one target: read, and written on condition that no other daemon has written since."""

from dataclasses import dataclass, replace

from flettner.actuators.shared.published_route import PublishedRoute, object_name
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import ConflictError

_TRIES = 5  # writes that lose against another client in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfigMap:
    """What is published. `route`: None if the ConfigMap has content that flettner did not write."""

    version: str  # resourceVersion
    route: PublishedRoute | None

    @classmethod
    def of(cls, document: Json) -> "RouteConfigMap":
        try:
            route = PublishedRoute.parse(document)
        except ValueError:
            route = None
        return cls(version=str(document["metadata"]["resourceVersion"]), route=route)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChannel:
    """`epoch`, `process`: of this daemon. Each call raises ActError while the API server is away."""

    client: KubernetesClient
    deployment: str
    target: str
    epoch: int
    process: str

    @property
    def name(self) -> str:
        return object_name(self.deployment, self.target)

    async def read(self) -> RouteConfigMap | None:
        document = await self.client.get(kubernetes.CONFIG_MAP, self.name)
        return None if document is None else RouteConfigMap.of(document)

    async def claim(self) -> RouteConfigMap | None:
        """Read what an older daemon, or this one, has published. Raises FencedError for a newer one's."""
        config_map = await self.read()
        self._check(config_map)
        return config_map

    def _check(self, config_map: RouteConfigMap | None) -> None:
        if config_map is not None and config_map.route is not None:
            config_map.route.refuse_older(self.epoch, self.process)

    async def write(self, route: PublishedRoute, config_map: RouteConfigMap | None) -> RouteConfigMap:
        """Replace what was found; on a conflict, what is there then. Raises FencedError, ActError."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return RouteConfigMap.of(await self._replace(route, config_map))
            except ConflictError:
                if not tries_left:
                    raise
                config_map = await self.claim()
        raise AssertionError("not reached")

    async def _replace(self, route: PublishedRoute, config_map: RouteConfigMap | None) -> Json:
        document = route.to_object(self.deployment)
        if config_map is None:
            return await self.client.create(kubernetes.CONFIG_MAP, document)
        metadata = {"labels": document["metadata"]["labels"], "resourceVersion": config_map.version}
        change = {"metadata": metadata, "data": document["data"]}
        return await self.client.patch(kubernetes.CONFIG_MAP, self.name, change)

    async def restore(self, before: PublishedRoute | None, written: RouteConfigMap) -> None:
        """Publish what was there before a write that the pods refuse, as this daemon's. Raises ActError."""
        if before is not None:
            ours = replace(before, epoch=self.epoch, process=self.process)
            await self.write(ours.renewed(), written)
        else:
            await self.remove()

    async def remove(self) -> None:
        await self.client.delete(kubernetes.CONFIG_MAP, self.name)

    async def check_writable(self) -> None:
        """Raises ActError if nothing can be published. Changes nothing."""
        probe = {"metadata": {"name": f"{self.name}-probe"}}
        await self.client.create(kubernetes.CONFIG_MAP, probe, dry_run=True)
