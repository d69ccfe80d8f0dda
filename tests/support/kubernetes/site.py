"""A complete site whose servers are Deployments: daemon and Envoy on this host, DNS of the cluster."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import NamedTuple, Self

from flettner.simulator.tally import RequestRecord
from flettner.simulator.traffic import Load
from tests.support.config_builder import SiteConfig
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import ROLE
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.rig import FLETTNER, Document, Rig, lost, until

FLAGS = ("tiny", "--sim-start-s", "0.5", "--sim-speed", "1", "--max-num-seqs", "8")
STREAMS = Load(streams=16)
_USER = "daemon"
_WITH_DNS = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'  # in a mount namespace of its own


@dataclass(frozen=True, kw_only=True)
class KubernetesSiteConfig(SiteConfig):
    """`deployments`: names to adopt; `kind`: the option that has them."""

    here: Namespace
    deployments: tuple[str, ...] = ("vllm",)
    kind: str = "deployments"
    strategy: str = "auto"
    steps: tuple[tuple[int, int, float], ...] = ((50, 8, 0.5),)
    start_s: float = 60.0
    upgrades: str = ""  # lines of `[targets.upgrades]`

    @property
    def access(self) -> str:
        """To the namespace, with the rights of the daemon."""
        return f'namespace = "{self.here.name}"\nkubeconfig = "{user_file(self.here)}"'

    def engine(self) -> str:
        return f"""
            kind = "kubernetes"
            {self.kind} = {dumps(list(self.deployments))}
            {self.access}
            strategy = "{self.strategy}"
            health_every_s = 0.5
            health_timeout_s = 2.0
            lost_after = 10
            [targets.upgrades]
            {self.upgrades}
        """


class Change(NamedTuple):
    """A rollout that has ended, and the requests that its clients lost."""

    rollout: Document
    lost: list[RequestRecord]


@dataclass(kw_only=True)
class KubernetesSite(Rig):
    """`rules`: the rights of the daemon's ServiceAccount; the chart's. `environment`: of the daemon, besides.

    `beside`: names of Deployments that are no servers.
    """

    here: Namespace
    rules: Sequence[Json] = tuple(ROLE)
    environment: dict[str, str] = field(default_factory=dict)
    patience_s: float = 240.0
    beside: tuple[str, ...] = ()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Started, with its one server at rest; all is torn down at the end."""
        try:
            await self.start()
            await self.serving()
            yield self
        finally:
            await self.tear_down()

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        if not user_file(self.here).exists():
            await self.here.user(_USER, *self.rules)
        resolv = self.home / "resolv.conf"
        search = f"{self.here.name}.svc.cluster.local svc.cluster.local cluster.local"
        resolv.write_text(
            f"nameserver {self.here.cluster.network.address}\nsearch {search}\noptions ndots:5\n"
        )
        with (self.home / "daemon.log").open("ab") as log:
            self.daemon = await asyncio.create_subprocess_exec(
                *("unshare", "--mount", "sh", "-c", _WITH_DNS, str(resolv)),
                *(*FLETTNER, "run", "-c", str(self.config), *words),
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        return self.daemon

    async def flags(self, deployment: str) -> list[str]:
        """The words of the first container of a Deployment."""
        document = await self.here.get("deployments", deployment)
        words: list[str] = document["spec"]["template"]["spec"]["containers"][0]["args"]
        return words

    async def scale(self, deployment: str, replicas: int) -> None:
        """As a person does."""
        await self.here.api.patch(self.here.path("deployments", deployment), {"spec": {"replicas": replicas}})

    async def deployments(self) -> dict[str, int]:
        """How many pods each Deployment wants, by name."""
        return {
            document["metadata"]["name"]: document["spec"]["replicas"]
            for document in await self.here.list("deployments")
        }

    async def restored(self, deployment: str = "vllm") -> Document:
        """Wait until only this Deployment is left, with its pods available, and those beside the servers."""
        left = {deployment, *self.beside}
        await until(
            self.deployments, lambda deployments: set(deployments) == left, "one Deployment to be left", 240.0
        )
        return await self.here.available(deployment)

    async def changed(
        self, meanwhile: Callable[[], Awaitable[object]] | None = None, phase: str = "canary"
    ) -> Change:
        """Change max_num_seqs to 16 under load; `meanwhile` acts in this phase of the rollout."""
        async with self.clients(load=STREAMS, timeout_s=90.0) as traffic:
            suggestion = await self.change(max_num_seqs=16)
            if meanwhile is not None:
                await self.in_phase(phase)
                await meanwhile()
            rollout = await self.ended(suggestion)
            await self.restored()
        return Change(rollout, lost(traffic))

    async def without_api_server(self, seconds: float) -> None:
        self.here.cluster.stop_api()
        await asyncio.sleep(seconds)
        self.here.cluster.start_api()


def user_file(here: Namespace) -> Path:
    """The kubeconfig of the daemon's ServiceAccount."""
    return here.cluster.folder / f"{here.name}-{_USER}.kubeconfig"


def site_of(here: Namespace, home: Path, **options: object) -> KubernetesSite:
    config = KubernetesSiteConfig(here=here, **options)  # type: ignore[arg-type]
    site = KubernetesSite(home=home, site_config=config, here=here)
    site.prepare()
    return site


@asynccontextmanager
async def host_site(
    here: Namespace, home: Path, *flags: str, replicas: int = 1, gpus: int = 1, **options: object
) -> AsyncIterator[KubernetesSite]:
    """A Deployment `vllm` whose traffic an Envoy on this host splits, adopted."""
    server = container(*FLAGS, *flags, gpus=gpus)
    await here.run(deployment("vllm", server, replicas=replicas))
    async with site_of(here, home, **options).running() as site:
        yield site
