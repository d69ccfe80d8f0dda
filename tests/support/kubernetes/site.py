"""A complete site whose servers are Deployments: daemon and Envoy on this host, DNS of the cluster."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path

from tests.support.config_builder import SiteConfig
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import ROLE
from tests.support.kubernetes.namespace import Namespace
from tests.support.rig import FLETTNER, Document, Rig, until

_USER = "daemon"
_WITH_DNS = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'  # in a mount namespace of its own


@dataclass(frozen=True, kw_only=True)
class KubernetesSiteConfig(SiteConfig):
    """`deployments`: names to adopt; `kind`: the option that has them. `kubeconfig`: of the daemon."""

    deployments: tuple[str, ...] = ("vllm",)
    kind: str = "deployments"
    namespace: str = ""
    kubeconfig: str = ""
    strategy: str = "auto"
    steps: tuple[tuple[int, int, float], ...] = ((50, 8, 0.5),)
    start_s: float = 60.0

    def engine(self) -> str:
        return f"""
            kind = "kubernetes"
            {self.kind} = {dumps(list(self.deployments))}
            namespace = "{self.namespace}"
            kubeconfig = "{self.kubeconfig}"
            strategy = "{self.strategy}"
            health_every_s = 0.5
            health_timeout_s = 2.0
            lost_after = 10
        """


@dataclass(kw_only=True)
class KubernetesSite(Rig):
    """`rules`: the rights of the daemon's ServiceAccount. `environment`: what the daemon has besides."""

    here: Namespace
    rules: Sequence[Json]
    environment: dict[str, str] = field(default_factory=dict)
    patience_s: float = 240.0

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
        found = await self.here.get("deployments", deployment)
        words: list[str] = found["spec"]["template"]["spec"]["containers"][0]["args"]
        return words

    async def scale(self, deployment: str, replicas: int) -> None:
        """As a person does."""
        await self.here.api.patch(self.here.path("deployments", deployment), {"spec": {"replicas": replicas}})

    async def deployments(self) -> dict[str, int]:
        """How many pods each Deployment wants, by name."""
        return {
            one["metadata"]["name"]: one["spec"]["replicas"] for one in await self.here.list("deployments")
        }

    async def restored(self, deployment: str, *beside: str) -> Document:
        """Wait until only this Deployment is left, with its pods available, and those beside the servers."""
        left = {deployment, *beside}
        await until(self.deployments, lambda found: set(found) == left, "one Deployment to be left", 240.0)
        return await self.here.available(deployment)


def user_file(here: Namespace) -> Path:
    """The kubeconfig of the daemon's ServiceAccount."""
    return here.cluster.folder / f"{here.name}-{_USER}.kubeconfig"


def site_of(
    here: Namespace, home: Path, *, rules: Sequence[Json] = ROLE, **options: object
) -> KubernetesSite:
    """With the rights that the chart gives the daemon."""
    config = KubernetesSiteConfig(
        namespace=here.name,
        kubeconfig=str(user_file(here)),
        **options,  # type: ignore[arg-type]
    )
    home.mkdir(exist_ok=True)
    site = KubernetesSite(home=home, site_config=config, here=here, rules=rules)
    site.prepare()
    return site
