"""The Docker Engine hangs, is killed or has a full disk during a rollout."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.docker_rig import CUT, FLAGS, SOME, DockerRig, DockerSiteConfig, all_is_well
from tests.support.docker_site import PORT, Bench, RunningContainer
from tests.support.own_dockerd import OwnEngine
from tests.support.rig import lost, until

pytestmark = [
    pytest.mark.timeout(180),
    # docker-py leaves its socket open if the Engine exits during a response
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
async def rig(tmp_path: Path, engine: OwnEngine, own_bench: Bench) -> AsyncIterator[DockerRig]:
    blue = await serving(own_bench, engine)
    site_config = DockerSiteConfig(
        containers=(blue.name,), host=engine.host, publish=engine.address, steps=((50, 10, 15.0),)
    )
    rig = DockerRig(home=tmp_path, site_config=site_config, bench=own_bench, blue=[blue])
    rig.prepare()
    await rig.start()
    yield rig
    await rig.tear_down()


async def serving(bench: Bench, engine: OwnEngine) -> RunningContainer:
    bindings = {PORT: [{"HostIp": engine.address, "HostPort": "20000"}]}
    blue = await bench.run(*FLAGS, port=None, restart="always", host={"PortBindings": bindings})
    blue = replace(blue, address=f"{engine.address}:20000")
    await bench.healthy(blue)
    return blue


async def test_a_canary_continues_while_the_docker_engine_hangs(rig: DockerRig, engine: OwnEngine) -> None:
    await rig.serving()

    async with rig.observer() as answers, rig.users(SOME) as traffic:
        change = await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        engine.hang()
        await asyncio.sleep(20)
        engine.go_on()
        one = await rig.ended(change)
        kept = await rig.consistent_servers()

    assert (one["outcome"], one["lost"], kept) == ("promoted", 0, ["chat-r1"]), one
    assert lost(traffic) == []
    assert set(answers) == {"200"}


async def test_blue_serves_after_the_docker_engine_is_killed_in_a_canary(
    rig: DockerRig, engine: OwnEngine
) -> None:
    """The next Engine stops all containers and restarts those with a restart policy, which green lacks."""
    await rig.serving()

    async with rig.users(SOME) as traffic:
        change = await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        await engine.kill()
        await asyncio.sleep(2)
        before = traffic.tally.outcomes["ok"]
        await until(lambda: ok(traffic.tally.outcomes["ok"]), lambda count: count >= before, "answers")
        await engine.start()
        one = await rig.ended(change)

    assert one["outcome"] == "rolled_back", one
    assert await rig.consistent_servers() == [rig.blue[0].name]
    assert {record.outcome for record in lost(traffic)} <= {*CUT, "aborted"}  # the Engine stops blue too
    await rig.bench.healthy(rig.blue[0])  # the Engine has started its container again
    await all_is_well(rig)


@pytest.mark.slow
async def test_a_promoted_container_that_the_next_docker_engine_starts_is_kept(
    rig: DockerRig, engine: OwnEngine
) -> None:
    """A second start would load the model twice."""
    await rig.serving()
    async with rig.users(SOME):
        await rig.switch(max_num_seqs=16)
    promoted = await rig.container("chat-r1")

    async with rig.users(SOME) as traffic:
        await engine.kill()
        await engine.start()
        before = traffic.tally.outcomes["ok"]
        await until(lambda: ok(traffic.tally.outcomes["ok"]), lambda count: count > before + 10, "answers")
        await until(partial(is_in_audit, rig, "restarted by Docker"), bool, "the daemon to see it")

    again = await rig.container("chat-r1")
    assert (again["Id"], await rig.consistent_servers()) == (promoted["Id"], ["chat-r1"])
    assert again["State"]["StartedAt"] > promoted["State"]["StartedAt"]
    await all_is_well(rig)


async def is_in_audit(rig: DockerRig, text: str) -> bool:
    return rig.named_in_audit(text)


async def ok(count: int) -> int:
    return count


async def test_detects_a_full_disk_before_a_launch(rig: DockerRig, engine: OwnEngine) -> None:
    await rig.serving()
    fill(engine.data / "full")

    async with rig.users(SOME) as traffic:
        made = await rig.propose(max_num_seqs=16)
    (engine.data / "full").unlink()

    assert made["status"] == "refused", made
    assert "no space left on device" in made["notes"][-1]
    assert await rig.consistent_servers() == [rig.blue[0].name]
    assert lost(traffic) == []


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as full, suppress(OSError):
        while full.write(bytes(1 << 12)):
            pass
