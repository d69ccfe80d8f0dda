"""Removal: people's Deployments serve again, no request is lost, and nothing of flettner's is left."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flettner.agent.domain.errors import ActError
from flettner.simulator.traffic import Load, TrafficGenerator
from tests.integration.kubernetes.test_proxy_rollouts import restart_proxy
from tests.support.kubernetes.engines import GREEN, bind, names, serve
from tests.support.kubernetes.manifests import headless_service
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY
from tests.support.kubernetes.proxy_site import proxy_site
from tests.support.kubernetes.queries import request
from tests.support.kubernetes.service_proxy import ServiceProxy
from tests.support.kubernetes.site import KubernetesSite, site_of, user_file
from tests.support.ports import free_port
from tests.support.rig import SHAPE, flettner, lost

pytestmark = pytest.mark.timeout(240)


async def traces(here: Namespace) -> set[str]:
    """Every name, label and annotation of flettner's in the namespace."""
    marks = set()
    for kind in ("deployments", "services", "pods", "leases", "configmaps"):
        for document in await here.list(kind):
            metadata = json.dumps(
                {key: document["metadata"].get(key) for key in ("name", "labels", "annotations")}
            )
            if "flettner" in metadata and document["metadata"]["name"] != "kube-root-ca.crt":
                marks.add(f"{kind} {metadata}")
    return marks


@asynccontextmanager
async def client_of(here: Namespace, service: str, failed: list[str]) -> AsyncIterator[None]:
    """Ask the pods behind a Service without pause; note what fails."""

    async def ask() -> None:
        while True:
            for address in await here.dns.resolve(f"{service}.{here.name}.svc") or ():
                try:
                    if await request(address) != 200:
                        failed.append(address)
                except OSError as error:
                    failed.append(str(error))
            await asyncio.sleep(0.05)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.wait({asking})


@asynccontextmanager
async def clients_of_people(here: Namespace) -> AsyncIterator[TrafficGenerator]:
    """Clients that ask the operator's own Service."""
    port = free_port()
    service = ServiceProxy(here, "vllm", port, 8000)
    traffic = TrafficGenerator(
        f"http://127.0.0.1:{port}", "tiny", Load(streams=16), shape=SHAPE, seed=1, timeout_s=90.0
    )
    await service.start()
    try:
        await traffic.start()
        yield traffic
        await traffic.stop()
    finally:
        await service.stop()


def as_person(site: KubernetesSite) -> Path:
    """The site's config with all rights."""
    text = site.config.read_text()
    site.config.write_text(text.replace(str(user_file(site.here)), str(site.here.cluster.kubeconfig())))
    return site.config


async def test_a_green_in_service_gives_the_traffic_back_and_nothing_is_left(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flettner.actuators.kubernetes.scale._DNS_S", 2.0)
    await serve(here)
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()
    green = await engine.launch(GREEN, 60)
    await engine.stop(blue)
    failed: list[str] = []

    async with client_of(here, green.address.partition(".")[0], failed):
        said = [*await engine.give_back()]
    await engine.clear()

    assert failed == []
    assert any("scaled to 1 again" in line for line in said)
    document = await here.available("vllm")
    assert document["spec"]["replicas"] == 1
    assert await names(here, "deployments") == {"vllm"}
    assert await traces(here) == set()
    assert [*await engine.give_back(), *await engine.clear()] == []


async def test_a_deployment_that_a_person_stopped_stays_stopped(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    await engine.launch(GREEN, 60)
    await here.api.patch(here.path("deployments", "vllm"), {"spec": {"replicas": 0}})

    with pytest.raises(ActError, match="scale it up first"):
        await engine.give_back()

    assert len(await names(here, "deployments")) == 2


async def test_the_command_removes_the_lease_too(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    async with site_of(here, tmp_path / "s").running() as site:
        await site.kill()

    status, said = await flettner("detach", str(as_person(site)))

    assert status == 0, said
    assert "is removed" in said
    assert await traces(here) == set()


async def test_an_upgrade_and_the_removal_lose_no_request(here: Namespace, tmp_path: Path) -> None:
    """The order of docs/kubernetes.md: the clients return to the Service of people before flettner goes."""
    await here.create("services", headless_service("vllm", {"app": "vllm"}, 80))
    async with proxy_site(here, tmp_path / "s") as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as by_proxy:
            await site.kill(signal.SIGTERM)
            await restart_proxy(here)
            await site.start()
            await site.serving()
        async with clients_of_people(here) as direct:
            await site.kill(signal.SIGTERM)
            status, said = await flettner("detach", str(as_person(site)))
            await here.api.delete(here.path("deployments", PROXY))
            await here.gone("deployments", PROXY)
            await asyncio.sleep(2.0)

    await here.api.delete(here.path("services", PROXY))
    assert (lost(by_proxy), lost(direct)) == ([], [])
    assert status == 0, said
    assert "ConfigMap flettner-proxy-chat is removed" in said
    assert {trace for trace in await traces(here) if not trace.startswith("pods")} == set()
