"""Sleeping instead of stopping, with a real Docker Engine and simulated servers: no GPU takes part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from actuators.docker import snapshots
from actuators.docker.engine import DockerEngine
from agent.domain.errors import ActError
from agent.domain.model import Server
from tests.support.claimed_gpu import DEV, GIB, SLEEPS, ClaimedGpu
from tests.support.docker_engine_rig import EngineRig, place
from tests.support.docker_site import Container


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[EngineRig]:
    async with place(tmp_path) as found:
        yield found


async def sleepy(here: EngineRig, *flags: str, gpu: ClaimedGpu | None = None) -> "Sleepy":
    container = await here.bench.serving(*SLEEPS, *flags, env=DEV, restart="always")
    found = Sleepy(here, container, gpu or ClaimedGpu())
    [found.blue] = await found.engine().observe()
    return found


class Sleepy:
    """An adopted server with sleep mode on a GPU that it claims to have."""

    blue: Server

    def __init__(self, here: EngineRig, container: Container, gpu: ClaimedGpu) -> None:
        self.here, self.container, self.gpu = here, container, gpu

    def engine(self, epoch: int = 1) -> DockerEngine:
        engine = self.here.engine(epoch=epoch)
        engine.sleeper = replace(engine.sleeper, measure=self.gpu.measure, free_within_s=0.5)
        return engine

    async def started_at(self) -> str:
        return (await self.here.bench.spec(self.container)).state.started_at

    async def runs(self) -> bool:
        return (await self.here.bench.spec(self.container)).state.running

    async def sleeps(self) -> bool:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.container.url}/is_sleeping") as answer,
        ):
            return (await answer.json())["is_sleeping"] is True

    async def answers(self) -> bool:
        body = {"prompt": "a", "max_tokens": 2}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.container.url}/v1/completions", json=body) as answer,
        ):
            return answer.status == 200


@pytest.mark.smoke
async def test_a_stopped_server_sleeps_and_a_launch_wakes_it(here: EngineRig) -> None:
    one = await sleepy(here)
    engine, began = one.engine(), await one.started_at()

    how = await engine.stop(one.blue)
    asleep, observed = await one.sleeps(), list(await engine.observe())
    policy = await here.policy(one.container.name)
    woken = await engine.launch(one.blue, 60)

    assert "sleeps: 79.0 GiB of GPU memory are free; its 72.0 GiB of weights are in host memory" in how
    assert (asleep, observed, policy) == (True, [], "no")
    assert (woken, await one.started_at(), await one.sleeps()) == (one.blue, began, False)
    assert list(await engine.observe()) == [one.blue]
    assert await here.policy(one.container.name) == "always"
    assert await one.answers()


async def test_the_next_daemon_finds_it_asleep_and_may_stop_or_wake_it(here: EngineRig) -> None:
    one = await sleepy(here)
    began = await one.started_at()
    await one.engine().stop(one.blue)

    later = one.engine(epoch=2)
    observed = list(await later.observe())
    how = await later.stop(one.blue)
    await one.engine(epoch=3).launch(one.blue, 60)

    assert observed == []
    assert "sleeps" in how
    assert (await one.started_at(), await one.sleeps()) == (began, False)


@pytest.mark.parametrize("slept", [False, True], ids=["before it sleeps", "after"])
async def test_a_daemon_that_is_killed_meanwhile_leaves_a_server_that_a_launch_returns(
    here: EngineRig, slept: bool
) -> None:
    one = await sleepy(here)
    began = await one.started_at()
    await one.engine().stop(one.blue)
    if not slept:
        async with aiohttp.ClientSession() as session, session.post(f"{one.container.url}/wake_up"):
            pass

    woken = await one.engine(epoch=2).launch(one.blue, 60)

    assert (woken.address, await one.started_at()) == (one.blue.address, began)
    assert await one.answers()


@pytest.mark.parametrize(
    ("flags", "gpu", "why"),
    [
        (("--sim-fault", "*:sleep_refused"), ClaimedGpu(), "/sleep?level=1: 500"),
        ((), ClaimedGpu(left_mib=20 * 1024.0), "asleep it leaves 60.0 of 80.0 GiB free, 0.92 are needed"),
        ((), ClaimedGpu(memory=64 * GIB), "72.0 GiB of weights do not fit into host memory: 38.4 GiB"),
    ],
    ids=["refused", "frees too little", "no room on the host"],
)
async def test_a_server_that_cannot_sleep_is_stopped_and_the_reason_returned(
    here: EngineRig, flags: tuple[str, ...], gpu: ClaimedGpu, why: str
) -> None:
    one = await sleepy(here, *flags, gpu=gpu)
    engine = one.engine()

    how = await engine.stop(one.blue)
    ended = not await one.runs()
    again = await engine.launch(one.blue, 60)

    assert "is stopped, since it cannot sleep" in how
    assert why in how
    assert ended
    assert again == one.blue
    assert await one.answers()


async def test_a_server_with_open_requests_is_stopped(here: EngineRig) -> None:
    one = await sleepy(here, "--sim-speed", "0.05")
    asking = asyncio.create_task(one.answers())
    engine = one.engine()

    async def busy() -> bool:
        return await engine.busy(one.blue) == 1

    async with asyncio.timeout(60):
        while not await busy():
            await asyncio.sleep(0.05)
    how = await engine.stop(one.blue)
    with suppress(aiohttp.ClientError):
        await asking

    assert "cannot sleep: 1 requests are open" in how
    assert not await one.runs()


async def test_a_server_that_does_not_wake_is_ended_and_started_by_the_next_launch(here: EngineRig) -> None:
    one = await sleepy(here, "--sim-fault", "*:wake_fails")
    engine, began = one.engine(), await one.started_at()
    await engine.stop(one.blue)

    with pytest.raises(ActError, match=r"did not wake, and is started instead: .*wake_up: 500") as failed:
        await engine.launch(one.blue, 60)
    ended = not await one.runs()
    again = await engine.launch(one.blue, 60)

    assert any("out of memory" in line for line in failed.value.log)
    assert ended
    assert again == one.blue
    assert await one.started_at() != began
    assert await one.answers()


async def test_a_server_that_dies_asleep_is_started_by_the_next_launch(here: EngineRig) -> None:
    one = await sleepy(here, "--sim-fault", "*:die_asleep=1")
    engine = one.engine()
    await engine.stop(one.blue)
    async with asyncio.timeout(60):
        while await one.runs():
            await asyncio.sleep(0.1)

    with pytest.raises(ActError, match="ended while it slept: it is started instead"):
        await engine.launch(one.blue, 60)
    again = await engine.launch(one.blue, 60)

    assert again == one.blue
    assert await one.answers()


async def test_a_server_that_a_third_party_started_again_meanwhile_is_not_taken_for_asleep(
    here: EngineRig,
) -> None:
    one = await sleepy(here)
    engine = one.engine()
    await engine.stop(one.blue)
    await here.bench.engine(lambda api: api.restart(one.container.id))
    await here.bench.healthy(one.container)

    observed = list(await engine.observe())
    again = await engine.launch(one.blue, 60)

    assert observed == [one.blue]
    assert again == one.blue
    assert await one.answers()


async def test_a_sleeping_server_can_be_retired(here: EngineRig) -> None:
    one = await sleepy(here)
    engine = one.engine()
    await engine.stop(one.blue)

    await engine.retire(one.blue)
    await engine.retire(one.blue)

    assert await here.bench.client.inspect(one.container.id) is None
    kept = snapshots.read_snapshot(here.site, one.blue.name)
    assert kept is not None
    assert kept.gone


async def test_a_server_without_sleep_mode_is_stopped(here: EngineRig) -> None:
    await here.bench.serving("--max-num-seqs", "2")
    engine = here.engine()
    [blue] = await engine.observe()

    how = await engine.stop(blue)

    assert "it was started without --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1" in how
