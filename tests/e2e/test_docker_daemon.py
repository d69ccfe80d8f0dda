"""The Docker Engine hangs, is killed or has a full disk during a rollout."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.docker_rig import CUT, SOME, DockerRig, DockerSiteConfig, all_is_well, own_site, until_ok
from tests.support.docker_site import Bench
from tests.support.own_dockerd import OwnEngine
from tests.support.rig import lost

pytestmark = [
    pytest.mark.timeout(180),
    # docker-py leaves its socket open if the Engine exits during a response
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
async def rig(tmp_path: Path, engine: OwnEngine, own_bench: Bench) -> AsyncIterator[DockerRig]:
    site_config = DockerSiteConfig(steps=((50, 10, 15.0),))
    async with own_site(tmp_path, site_config, own_bench, engine) as rig:
        yield rig


async def test_a_canary_continues_while_the_docker_engine_hangs(rig: DockerRig, engine: OwnEngine) -> None:
    async with rig.observer() as answers, rig.users(SOME) as traffic:
        change = await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        engine.hang()
        await asyncio.sleep(20)
        engine.go_on()
        rollout = await rig.ended(change)
        servers = await rig.consistent_servers()

    assert (rollout["outcome"], rollout["lost"], servers) == ("promoted", 0, ["chat-r1"]), rollout
    assert lost(traffic) == []
    assert set(answers) == {"200"}


async def test_blue_serves_after_the_docker_engine_is_killed_in_a_canary(
    rig: DockerRig, engine: OwnEngine
) -> None:
    """The next Engine stops all containers and restarts those with a restart policy, which green lacks."""
    async with rig.users(SOME) as traffic:
        change = await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        await engine.kill()
        await asyncio.sleep(2)
        await until_ok(traffic, traffic.tally.outcomes["ok"])
        await engine.start()
        rollout = await rig.ended(change)

    assert rollout["outcome"] == "rolled_back", rollout
    assert await rig.consistent_servers() == [rig.blue[0].name]
    assert {record.outcome for record in lost(traffic)} <= {*CUT, "aborted"}  # the Engine stops blue too
    await rig.bench.healthy(rig.blue[0])  # the Engine has started its container again
    await all_is_well(rig)


@pytest.mark.slow
async def test_a_promoted_container_that_the_next_docker_engine_starts_is_kept(
    rig: DockerRig, engine: OwnEngine
) -> None:
    """A second start would load the model twice."""
    async with rig.users(SOME):
        await rig.switch(max_num_seqs=16)
    promoted = await rig.container("chat-r1")

    async with rig.users(SOME) as traffic:
        await engine.kill()
        await engine.start()
        await until_ok(traffic, traffic.tally.outcomes["ok"] + 11)
        await rig.until_in_audit("restarted by Docker")

    again = await rig.container("chat-r1")
    assert (again["Id"], await rig.consistent_servers()) == (promoted["Id"], ["chat-r1"])
    assert again["State"]["StartedAt"] > promoted["State"]["StartedAt"]
    await all_is_well(rig)


async def test_detects_a_full_disk_before_a_launch(rig: DockerRig, engine: OwnEngine) -> None:
    fill(engine.data / "full")

    async with rig.users(SOME) as traffic:
        suggestion = await rig.propose(max_num_seqs=16)
    (engine.data / "full").unlink()

    assert suggestion["status"] == "refused", suggestion
    assert "no space left on device" in suggestion["notes"][-1]
    assert await rig.consistent_servers() == [rig.blue[0].name]
    assert lost(traffic) == []


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as full, suppress(OSError):
        while full.write(bytes(1 << 12)):
            pass
