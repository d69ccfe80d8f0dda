"""One daemon with several targets on Kubernetes, whose Envoys are pods or whose traffic a gateway splits."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from flettner.actuators.gateway.record import annotation, record_of
from flettner.actuators.shared.published_route import PublishedRoute, object_name
from tests.support.config_builder import TARGET
from tests.support.gateway.stand_in import Gateway
from tests.support.kubernetes.engines import ROLE
from tests.support.kubernetes.gateway_site import DAEMON, GatewaySiteConfig, start_guard
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY, create_proxy, of_chart
from tests.support.kubernetes.proxy_site import ProxySiteConfig
from tests.support.kubernetes.service_proxy import ServiceProxy
from tests.support.kubernetes.site import KubernetesSite, KubernetesSiteConfig
from tests.support.ports import free_port
from tests.support.rig import until

CAPS = (8, 16)
"""Both caps are enough for the clients, so that the greens are equal."""
BAD_CAP = 12
FLAGS = (
    "tiny",
    "--sim-start-s",
    "0.5",
    "--max-num-seqs",
    str(CAPS[0]),
    "--sim-fault",
    f"max_num_seqs={BAD_CAP}:slow=20",
)
STEPS = ((20, 8, 4.0), (50, 8, 4.0))
_PORT = 9000  # of the first target in an Envoy pod


def several(text: str, names: Sequence[str]) -> str:
    """Give the config a target for each name, with a Deployment of that name and a port of its own."""
    head, mark, table = text.partition("[[targets]]")
    tables = [
        table.replace('["vllm"]', f'["{name}"]')
        .replace(f'"{TARGET}"', f'"{name}"')
        .replace(":8080", f":{_PORT + place}")
        for place, name in enumerate(names)
    ]
    return head + "".join(mark + target for target in tables)


@dataclass(frozen=True, kw_only=True)
class SeveralTargets(KubernetesSiteConfig):
    names: tuple[str, ...]

    def text(self, *, api: int, listen: int) -> str:
        return several(super().text(api=api, listen=listen), self.names)


class EnvoyTargets(SeveralTargets, ProxySiteConfig):
    """Targets behind two Envoy pods."""


class GatewayTargets(SeveralTargets, GatewaySiteConfig):
    """Targets whose traffic a gateway splits."""


@dataclass(kw_only=True)
class Site(KubernetesSite):
    """`urls`: for the clients of each target. `pod`: the uid of the pod that the daemon stands for."""

    names: tuple[str, ...]
    urls: dict[str, str] = field(default_factory=dict)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    pod: str = field(default_factory=lambda: uuid4().hex)
    restarted: bool = True

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        self.environment = {"POD_UID": self.pod}
        return await super().start(*words)

    async def kill_group(self) -> None:
        """kill -9 of the daemon's process group."""
        assert self.daemon is not None
        os.killpg(self.daemon.pid, signal.SIGKILL)
        await self.daemon.wait()

    async def weights_of(self, name: str) -> dict[str, int]:
        """Return the published weights in percent by server; empty if nothing is published."""
        if name in self.gateways:
            record = record_of(await self.gateways[name].get(name), annotation(name))
            return dict(record.weights) if record else {}
        for config in await self.here.list("configmaps"):
            if config["metadata"]["name"] == object_name(PROXY, name):
                return dict(PublishedRoute.parse(config).route.weights)
        return {}

    async def ready(self) -> bool:
        return (await self.ask("GET", "/readyz"))[0] == 200  # noqa: PLR2004 - HTTP


@asynccontextmanager
async def running(here: Namespace, home: Path, names: tuple[str, ...], traffic: str) -> AsyncIterator[Site]:
    """Yield a daemon that has adopted a Deployment for each name."""
    for name in names:
        await here.create("deployments", deployment(name, container(*FLAGS, gpus=1)))
    async with AsyncExitStack() as undo:
        gateways = await _gateways(here, names, undo) if traffic == "gateway" else {}
        kind = GatewayTargets if gateways else EnvoyTargets
        config = kind(
            names=names,
            here=here,
            steps=STEPS,
            at_most_s=180.0,  # the machine may be busy, and the daemon is away for seconds
            start_s=180.0,
            warm_up_s=90.0,
            drain_s=180.0,  # longer than the requests of a slow green last
        )
        rights = (*ROLE, *DAEMON) if gateways else ROLE
        site = Site(home=home, site_config=config, here=here, rules=rights, names=names, gateways=gateways)
        site.prepare()
        if gateways:
            site.urls = {name: f"http://{gateway.listen}" for name, gateway in gateways.items()}
            guard = await start_guard(here, home)
            undo.push_async_callback(_end, guard)
        else:
            await _envoys(here, site, undo)
        for name in names:
            await here.available(name)
        undo.push_async_callback(site.tear_down)
        await site.start()
        await until(site.ready, bool, "readiness")
        for name in names:
            await until(partial(site.weights_of, name), {name: 100}.__eq__, f"all traffic on {name}")
        if not gateways:
            await here.available(PROXY)
        yield site


async def _gateways(here: Namespace, names: Sequence[str], undo: AsyncExitStack) -> dict[str, Gateway]:
    """Create a gateway and a Service for each target, since a gateway listens at one address."""
    gateways = {}
    for name in names:
        spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]}
        await here.create("services", {"metadata": {"name": name}, "spec": spec})
        gateways[name] = await undo.enter_async_context(Gateway(here, name=f"gate-{name}"))
        await gateways[name].create(name, {"backendRefs": [{"name": name, "port": 80}]})
    return gateways


async def _envoys(here: Namespace, site: Site, undo: AsyncExitStack) -> None:
    """Create two Envoy pods for all targets, and forward a port of this host to each target."""
    await create_proxy(here)
    await here.create("services", of_chart("Service", PROXY))
    for place, name in enumerate(site.names):
        listen = free_port()
        service = ServiceProxy(here, PROXY, listen, _PORT + place)
        await service.start()
        undo.push_async_callback(service.stop)
        site.urls[name] = f"http://127.0.0.1:{listen}"


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    await process.wait()
