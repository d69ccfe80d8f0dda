"""`flettner detach --do`: the operator's server takes over under its old address, and no request is lost."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from flettner.actuators.host import procfs
from flettner.actuators.host.origin import setting_of
from flettner.actuators.host.process_group import end, group_of
from flettner.agent.audit import chain
from flettner.primitives.address import Address
from tests.e2e.conftest import Start, StartDocker
from tests.e2e.docker_rig import FLAGS, SOME, DockerSiteConfig
from tests.e2e.test_adopting import third_party_server
from tests.support.config_builder import SiteConfig
from tests.support.docker_site import Bench
from tests.support.rig import Document, Rig, flettner, lost

pytestmark = pytest.mark.timeout(180)


@asynccontextmanager
async def changed_site(site: Start, site_config: SiteConfig) -> AsyncIterator[tuple[Rig, Address]]:
    """A site whose adopted server was replaced by one of flettner's, without a daemon."""
    async with third_party_server() as (url, process):
        rig = await site(replace(site_config, serving=url))
        await rig.serving()
        async with rig.clients():
            await rig.switch(max_num_seqs=16)
        await process.wait()
    await rig.kill()
    home = Address.parse(url.removeprefix("http://"))
    try:
        yield rig, home
    finally:
        if (server := procfs.find_listener(home.port)) is not None:
            await end(server, group_of(server), 0)


async def listed_models(address: str) -> Document:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/v1/models") as answer:
        document: Document = await answer.json()
        return document


async def test_the_old_address_serves_again_and_the_proxy_ends_once_its_clients_have_left(
    site: Start,
) -> None:
    async with changed_site(site, SiteConfig()) as (rig, home):
        leave = ("detach", str(rig.config), "chat", "--do", "--quiet", "1")

        async with rig.observer() as answers, rig.clients() as traffic:
            early, asked = await flettner(*leave, "--wait", "2")
        moved = await listed_models(str(home))
        last, said = await flettner(*leave, "--wait", "30")

        server = procfs.find_listener(home.port)
        assert server is not None
        assert (early, last) == (1, 0), f"{asked}\n{said}"
        assert f"chat: point the clients at {home} now: until then Envoy at 127.0.0.1:{rig.listen}" in asked
        assert "clients still ask" in asked
        assert "chat-r1 ends, drained" in asked
        assert "the proxy listens no more" in said
        assert lost(traffic) == []
        assert set(answers) == {"200"}
        assert moved["data"]
        assert setting_of(procfs.words(server.pid))["max_num_seqs"] == 16
        marks = procfs.environment(server.pid).keys() - os.environ.keys()
        assert not any(name.startswith("FLETTNER") for name in marks)
        assert rig.processes() == {}
        assert rig.envoy.find() is None
        entries = [entry for entry in rig.audit() if entry["action"].startswith("target.lea")]
        assert [entry["action"] for entry in entries] == [
            "target.leaving",
            "target.leaving_failed",
            "target.leaving",
        ]
        assert {entry["actor"]["role"] for entry in entries} == {"admin"}
        assert rig.audit()[-1]["action"] == "target.left"
        assert chain.verify(rig.journal).ok


@pytest.mark.slow
async def test_requests_wait_in_the_proxy_while_both_servers_do_not_fit(site: Start) -> None:
    async with changed_site(site, SiteConfig(waits_s=20.0)) as (rig, home):
        async with rig.observer() as answers:
            status, said = await flettner(
                *("detach", str(rig.config), "--do", "--stop-first", "--quiet", "1", "--wait", "3")
            )

        assert status == 1, said
        assert "requests wait up to 20 s" in said
        assert "chat-r1 is stopped" in said
        assert set(answers) == {"200"}
        assert await listed_models(str(home))


async def test_a_rollout_is_ended_by_the_daemon_first(site: Start) -> None:
    rig = await site(SiteConfig(steps=((25, 100_000, 50.0),), at_most_s=1000.0))
    await rig.serving()
    await rig.change(max_num_seqs=16)
    await rig.in_phase("canary")
    await rig.kill()

    status, said = await flettner("detach", str(rig.config), "--do")

    assert status == 2
    assert "chat is in canary: start the daemon, `flettner abort chat`" in said
    assert set(rig.processes()) == {"chat-r1", "chat-r2"}


async def test_the_operators_container_is_made_again_with_the_new_flags(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await bench.serving(*FLAGS, restart="unless-stopped", labels={"team": "chat"})
    rig = await docker_site(DockerSiteConfig(), blue)
    before = await bench.inspect(blue)
    async with rig.users(SOME):
        await rig.switch(max_num_seqs=16)
    await rig.kill()

    async with rig.observer() as answers, rig.users(SOME) as traffic:
        early, asked = await flettner(*leave_docker(rig), "--wait", "1")
    last, said = await flettner(*leave_docker(rig), "--wait", "30")

    after = await rig.container(blue.name)
    assert (early, last) == (1, 0), f"{asked}\n{said}"
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert await listed_models(blue.address)
    assert await rig.made() == set()
    assert after["Name"] == before["Name"]
    assert after["Config"]["Labels"] == before["Config"]["Labels"]
    for key in ("PortBindings", "RestartPolicy"):
        assert after["HostConfig"][key] == before["HostConfig"][key]
    assert "16" in after["Config"]["Cmd"]
    assert rig.envoy.find() is None
    await asyncio.to_thread(chain.verify, rig.journal)


def leave_docker(rig: Rig) -> tuple[str, ...]:
    return ("detach", str(rig.config), "--do", "--quiet", "1")
