"""A complete site whose Envoys are pods: clients reach them by a Service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flettner.actuators.shared.published_route import PublishedRoute, object_name
from tests.support.config_builder import TARGET
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY, create_proxy, of_chart
from tests.support.kubernetes.service_proxy import ServiceProxy
from tests.support.kubernetes.site import FLAGS, KubernetesSite, KubernetesSiteConfig

_PORT = 8080


@dataclass(frozen=True, kw_only=True)
class ProxySiteConfig(KubernetesSiteConfig):
    def traffic(self, listen: int) -> str:
        del listen  # of the Service
        return f"""
            kind = "envoy_deployment"
            deployment = "{PROXY}"
            listen = "0.0.0.0:{_PORT}"
            {self.access}
        """


@dataclass(kw_only=True)
class ProxySite(KubernetesSite):
    beside: tuple[str, ...] = (PROXY,)

    async def weights(self) -> dict[str, int]:
        """As published; empty without a route."""
        for config_map in await self.here.list("configmaps"):
            if config_map["metadata"]["name"] == object_name(PROXY, TARGET):
                return dict(PublishedRoute.parse(config_map).route.weights)
        return {}


@asynccontextmanager
async def proxy_site(here: Namespace, home: Path, *flags: str, **options: object) -> AsyncIterator[ProxySite]:
    """With two Envoys and a server, serving."""
    await here.create("deployments", deployment("vllm", container(*FLAGS, *flags, gpus=1)))
    await create_proxy(here)
    await here.create("services", of_chart("Service", PROXY))
    await here.available("vllm")
    config = ProxySiteConfig(here=here, **options)  # type: ignore[arg-type]
    site = ProxySite(home=home, site_config=config, here=here)
    site.prepare()
    service = ServiceProxy(here, PROXY, site.listen, _PORT)
    await service.start()
    try:
        async with site.running():
            await here.available(PROXY)
            yield site
    finally:
        await service.stop()
