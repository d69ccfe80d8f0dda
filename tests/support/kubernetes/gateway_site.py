"""A complete site behind a gateway: the daemon on this host, the guard as a process of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from flettner.actuators.gateway.guard_sign import LEASE_NAME
from flettner.actuators.gateway.record import SplitRecord, annotation, record_of
from tests.support.config_builder import TARGET
from tests.support.gateway.stand_in import Gateway
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import ROLE
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import FLAGS, KubernetesSite, KubernetesSiteConfig
from tests.support.rig import Document, until

ROUTE = "chat"
EXAMPLE = Path(__file__).parents[3] / "examples" / "gateway-guard.yaml"
MANIFESTS: list[Json] = list(yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8")))
GUARD, DAEMON = (manifest["rules"] for manifest in MANIFESTS if manifest["kind"] == "Role")
HOME = {"vllm": 1}  # the backends of the HTTPRoute as people wrote them, with their weights


@dataclass(frozen=True, kw_only=True)
class GatewaySiteConfig(KubernetesSiteConfig):
    """`records`: the address that gets the gateway's access log; empty: there is none."""

    records: str = ""

    def traffic(self, listen: int) -> str:
        del listen
        return f"""
            kind = "gateway"
            route = "{ROUTE}"
            {self.access}
            settle_s = 1.0
            records = "{self.records}"
        """

    def text(self, *, api: int, listen: int) -> str:
        """Without the options of Envoy, and of the records that it writes."""
        lines = super().text(api=api, listen=listen).splitlines()
        return "\n".join(
            line
            for line in lines
            if not line.strip().startswith(("report_every_s", "hold_s", "proxy_requests = { stalled"))
        )


@dataclass(kw_only=True)
class GatewaySite(KubernetesSite):
    gateway: Gateway

    async def record(self) -> SplitRecord | None:
        return record_of(await self.gateway.get(ROUTE), annotation(TARGET))

    async def weights(self) -> dict[str, int]:
        record = await self.record()
        return dict(record.weights) if record else {}

    async def restored(self, deployment: str = "vllm") -> Document:
        document = await super().restored(deployment)
        await self.at_home()
        return document

    async def at_home(self) -> None:
        """Wait until the HTTPRoute is as people wrote it."""
        await until(lambda: self.gateway.backends(ROUTE), HOME.__eq__, "the backends of people", 120.0)


async def start_guard(here: Namespace, home: Path) -> asyncio.subprocess.Process:
    user = await here.user("guard", *GUARD)
    words = ("--namespace", here.name, "--kubeconfig", str(user))
    with (home / "guard.log").open("ab") as log:
        guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flettner.actuators.gateway.guard", *words), stdout=log, stderr=log
        )

    async def sign() -> Json:
        return next(
            (lease for lease in await here.list("leases") if lease["metadata"]["name"] == LEASE_NAME), {}
        )

    await here.eventually(sign)
    return guard


@asynccontextmanager
async def gateway_site(
    here: Namespace, home: Path, *flags: str, records: str = "", sent_to: str = ""
) -> AsyncIterator[GatewaySite]:
    """A Deployment `vllm` behind a Service of people and an HTTPRoute, adopted.

    `records`: where the daemon listens for the access log; `sent_to`: where the gateway sends it instead.
    """
    await here.create("deployments", deployment("vllm", container(*FLAGS, *flags, gpus=1)))
    spec = {"selector": {"app": "vllm"}, "ports": [{"port": 80, "targetPort": 8000}]}
    await here.create("services", {"metadata": {"name": "vllm"}, "spec": spec})
    await here.available("vllm")
    async with Gateway(here, records=sent_to or records) as gateway:
        await gateway.create(ROUTE, {"backendRefs": [{"name": "vllm", "port": 80}]})
        site = GatewaySite(
            home=home,
            site_config=GatewaySiteConfig(here=here, drain_s=30.0, records=records),
            here=here,
            rules=(*ROLE, *DAEMON),
            gateway=gateway,
            listen=int(gateway.listen.rpartition(":")[2]),
        )
        site.prepare()
        guard = await start_guard(here, home)
        try:
            async with site.running():
                yield site
        finally:
            guard.terminate()
            await guard.wait()
