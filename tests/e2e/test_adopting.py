"""Third-party servers: only observed in advise mode, adopted and changed in the other modes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flettner.agent.domain.digest import site_digest
from tests.e2e.conftest import Start, StartDocker
from tests.e2e.docker_rig import FLAGS, DockerSiteConfig
from tests.support.config_builder import QUICK, SERVER, TARGET, SiteConfig
from tests.support.docker_site import Bench
from tests.support.ports import free_port
from tests.support.rig import PATIENCE_S, lost, until
from tests.unit.simulator.running import scrape


@asynccontextmanager
async def third_party_server() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server started outside flettner; yields its URL and process."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(*SERVER, *QUICK, "--watermark", "0.02", "--port", str(port)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await until(lambda: _answers(url), bool, "the server to answer")
        yield url, process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _answers(url: str) -> bool:
    try:
        return bool(await scrape(url))
    except OSError:
        return False


async def test_changes_and_retires_an_adopted_server_like_a_launched_one(site: Start) -> None:
    async with third_party_server() as (url, process):
        rig = await site(SiteConfig(serving=url))
        before = await rig.serving()
        assert rig.audit()[0]["action"] == "daemon.started", "a first start misses no journal"

        async with rig.observer() as answers, rig.clients() as traffic:
            rollout = await rig.switch(max_num_seqs=16)
            async with asyncio.timeout(PATIENCE_S):
                code = await process.wait()
            green = await rig.consistent_server()

    after = await rig.target()
    assert [server["ours"] for server in before["servers"]] == [False]
    assert (rollout["outcome"], rollout["lost"], green, code) == ("promoted", 0, "chat-r1", 0), rollout
    assert after["servers"][0]["setting"] == {**before["servers"][0]["setting"], "max_num_seqs": 16}
    assert lost(traffic) == []
    assert set(answers) == {"200"}


@pytest.mark.parametrize(("mode", "words"), [("advise", ()), ("approve", ("--dry-run",))])
async def test_advise_mode_changes_nothing(site: Start, mode: str, words: tuple[str, ...]) -> None:
    async with third_party_server() as (url, process):
        rig = await site(SiteConfig(serving=url, mode=mode), *words)
        await until(rig.target, lambda target: target and target["servers"], "the server to be seen")
        assert not rig.named_in_audit("the journal was removed")
        made = await rig.propose(max_num_seqs=16)
        status, answer = await rig.approve(made)
        await asyncio.sleep(2.0)  # some ticks of the loop
        target = await rig.target()

        assert (status, answer["type"]) == (409, "urn:flettner:problem:mode-is-advise")
        assert (target["mode"], target["phase"]) == ("advise", "proposed")
        assert [(server["address"], server["weight"]) for server in target["servers"]] == [
            (url.removeprefix("http://"), None)
        ]
        assert rig.processes() == {}
        assert rig.envoy.find() is None
        assert {file.name for file in rig.envoy.home.iterdir()} <= {"records.sock"}  # where a sensor listens
        assert process.returncode is None


async def test_advise_mode_starts_and_changes_no_container(bench: Bench, docker_site: StartDocker) -> None:
    blue = await bench.serving(*FLAGS)
    before = await bench.inspect(blue)
    rig = await docker_site(DockerSiteConfig(mode="advise"), blue)
    await until(rig.target, lambda target: target and target["servers"], "the server to be seen")
    made = await rig.propose(max_num_seqs=16)
    ours = f"-{site_digest(TARGET, rig.marked)[:6]}"

    names = await bench.made_after(blue, "flettner-")
    await rig.kill()
    after = await bench.inspect(blue)
    rig.config.write_text(rig.config.read_text().replace('mode = "advise"', 'mode = "approve"'))
    await rig.start()
    await rig.serving()
    status, answer = await rig.approve(made)

    assert [name for name in names if name.endswith(ours)] == []
    for document in (before, after):
        document["Mounts"].sort(key=lambda mount: str(mount["Destination"]))  # the Engine's order varies
    assert after == before
    assert made["status"] == "open", made
    assert any("advise mode starts no container" in note for note in made["notes"])
    assert (status, "superseded" in answer["detail"]) == (409, True), answer
