"""One Envoy pod for many tests, whose traffic is observed at the address of the pod."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from flettner.actuators.envoy_deployment.plugin import EnvoyDeploymentPlugin
from flettner.actuators.envoy_deployment.traffic import DeploymentTraffic
from flettner.agent.domain.ports import Site
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import create_proxy, of_chart, proxy_pods

_PORT = 8080


class PlacedTraffic(DeploymentTraffic):
    """`listen`: of the pod."""

    host: str

    @property
    def listen(self) -> str:
        return f"{self.host}:{_PORT}"

    async def stop(self) -> None:
        """The pod stays for the next test, which begins without a route."""
        await self._channel.remove()


class SharedEnvoyPod:
    """`bind` as a plugin does, with the documented rights of the daemon."""

    def __init__(self, options: EnvoyDeploymentPlugin, host: str) -> None:
        self._options, self._host = options, host

    def bind(self, site: Site) -> DeploymentTraffic:
        traffic = PlacedTraffic(self._options, site)
        traffic.host = self._host
        return traffic

    @classmethod
    @asynccontextmanager
    async def running(cls, cluster: Cluster) -> AsyncIterator[Self]:
        async with Namespace(cluster) as here:
            user = await _user(here)
            await create_proxy(here, replicas=1)

            async def has_address() -> Json:
                return {"items": pods} if (pods := await proxy_pods(here)) else {}

            [pod] = (await here.eventually(has_address))["items"]
            yield cls(
                EnvoyDeploymentPlugin(kubeconfig=str(user), confirm_s=60.0, hold_s=1.0),
                pod["status"]["podIP"],
            )


async def _user(here: Namespace) -> Path:
    return await here.user("flettner", *of_chart("Role", "flettner")["rules"])
