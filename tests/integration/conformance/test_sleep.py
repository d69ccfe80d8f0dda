"""Sleeping instead of stopping: every engine of this host does it alike.

The servers are simulated, and no GPU takes part.
"""

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.host import procfs
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Engine, Site
from tests.support.claimed_gpu import DEV, GIB, SLEEPS, ClaimedGpu, sleeps
from tests.support.docker_engine_rig import EngineRig, place
from tests.support.docker_site import RunningContainer
from tests.support.ports import free_port
from tests.support.process_rig import free_ports
from tests.support.real_vllm import REPOSITORY

SIMULATOR = (sys.executable, "-m", "flettner.simulator.server", "--model", "tiny", "--sim-start-s", "0.2")


@dataclass(kw_only=True)
class Sleepy(ABC):
    """A server with sleep mode, on a GPU that it claims to have."""

    gpu: ClaimedGpu = field(default_factory=ClaimedGpu)
    blue: Server = field(init=False)

    @abstractmethod
    async def begin(self, *flags: str) -> None:
        """Start blue with these flags of the simulator."""

    @abstractmethod
    def engine(self, epoch: int = 1) -> Engine: ...

    @abstractmethod
    async def run(self) -> object:
        """What tells this run of the server from the next one; None: it does not run."""

    @abstractmethod
    async def restart(self) -> None:
        """Start it again, as its owner does."""

    async def sleeps(self) -> bool:
        return await sleeps(self.blue.address)

    async def answers(self) -> bool:
        body = {"prompt": "a", "max_tokens": 2}
        url = f"http://{self.blue.address}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return answer.status == 200


@dataclass(kw_only=True)
class SleepyContainer(Sleepy):
    here: EngineRig
    container: RunningContainer = field(init=False)

    async def begin(self, *flags: str) -> None:
        self.container = await self.here.bench.serving(*SLEEPS, *flags, env=DEV, restart="always")
        [self.blue] = await self.engine().observe()

    def engine(self, epoch: int = 1) -> Engine:
        engine = self.here.engine(epoch=epoch)
        engine.sleeper = replace(engine.sleeper, measure=self.gpu.measure, free_within_s=0.5)
        return engine

    async def run(self) -> object:
        state = (await self.here.bench.spec(self.container)).state
        return state.started_at if state.running else None

    async def restart(self) -> None:
        await self.here.bench.engine(lambda api: api.restart(self.container.id))
        await self.here.bench.healthy(self.container)


@dataclass(kw_only=True)
class SleepyProcess(Sleepy):
    """`adopted`: started by the test, else by the engine."""

    state_dir: Path
    adopted: bool
    port: int = field(default_factory=free_port)
    ports: tuple[int, int] = field(default_factory=free_ports)
    flags: tuple[str, ...] = ()
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def begin(self, *flags: str) -> None:
        self.flags = (*SIMULATOR, "--host", "127.0.0.1", *SLEEPS, *flags)
        if self.adopted:
            await self._start()
            [self.blue] = await self.engine().observe()
        else:
            self.blue = await self.engine().launch(Server(name="chat-r1", setting={}), 60)

    def engine(self, epoch: int = 1) -> Engine:
        options = ProcessPlugin(
            command=() if self.adopted else self.flags,
            serving=f"http://127.0.0.1:{self.port}" if self.adopted else "",
            env=DEV,
            cwd=str(REPOSITORY),
            ports=self.ports,
            stop_s=5.0,
        )
        engine = options.bind(Site(target="chat", state_dir=self.state_dir, epoch=epoch))
        engine.sleeper = replace(engine.sleeper, measure=self.gpu.measure_process, free_within_s=0.5)
        return engine

    async def run(self) -> object:
        return procfs.find_listener(int(self.blue.address.rpartition(":")[2]))

    async def restart(self) -> None:
        await self.engine().retire(self.blue)
        await self._start()

    async def _start(self) -> None:
        self.started.append(
            await asyncio.create_subprocess_exec(
                *self.flags, "--port", str(self.port), cwd=REPOSITORY, env={**os.environ, **DEV}
            )
        )
        async with asyncio.timeout(60):
            while not await self.engine().observe():
                await asyncio.sleep(0.1)

    async def end(self) -> None:
        await self.engine(epoch=9).retire(self.blue)
        for process in self.started:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.fixture(params=["docker", "process", "process, adopted"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sleepy]:
    if request.param == "docker":
        async with place(tmp_path) as here:
            yield SleepyContainer(here=here)
        return
    async with processes(tmp_path, adopted="adopted" in request.param) as process:
        yield process


@asynccontextmanager
async def processes(state_dir: Path, *, adopted: bool) -> AsyncIterator[SleepyProcess]:
    process = SleepyProcess(state_dir=state_dir, adopted=adopted)
    try:
        yield process
    finally:
        await process.end()


@pytest.mark.smoke
async def test_a_stopped_server_sleeps_and_a_launch_wakes_it(site: Sleepy) -> None:
    await site.begin()
    engine, began = site.engine(), await site.run()

    how = await engine.stop(site.blue)
    asleep, observed = await site.sleeps(), list(await engine.observe())
    woken = await engine.launch(site.blue, 60)

    assert "sleeps: 79.0 GiB of GPU memory are free; its 72.0 GiB of weights are in host memory" in str(how)
    assert (asleep, observed) == (True, [])
    assert (woken, await site.run(), await site.sleeps()) == (site.blue, began, False)
    assert list(await engine.observe()) == [site.blue]
    assert await site.answers()


async def test_the_next_daemon_finds_it_asleep_and_may_stop_or_wake_it(site: Sleepy) -> None:
    await site.begin()
    began = await site.run()
    await site.engine().stop(site.blue)

    later = site.engine(epoch=2)
    observed = list(await later.observe())
    how = await later.stop(site.blue)
    await site.engine(epoch=3).launch(site.blue, 60)

    assert observed == []
    assert "sleeps" in str(how)
    assert (await site.run(), await site.sleeps()) == (began, False)


async def test_an_older_daemon_may_not_wake_it(site: Sleepy) -> None:
    await site.begin()
    await site.engine(epoch=2).stop(site.blue)

    with pytest.raises(ActError, match="newer daemon"):
        await site.engine(epoch=1).launch(site.blue, 60)

    assert await site.sleeps()
    assert await site.engine().newest_epoch() == 2


@pytest.mark.parametrize("slept", [False, True], ids=["before it sleeps", "after"])
async def test_a_daemon_that_is_killed_meanwhile_leaves_a_server_that_a_launch_returns(
    site: Sleepy, slept: bool
) -> None:
    await site.begin()
    began = await site.run()
    await site.engine().stop(site.blue)
    if not slept:
        url = f"http://{site.blue.address}/wake_up"
        async with aiohttp.ClientSession() as session, session.post(url):
            pass

    woken = await site.engine(epoch=2).launch(site.blue, 60)

    assert (woken.address, await site.run()) == (site.blue.address, began)
    assert await site.answers()


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
    site: Sleepy, flags: tuple[str, ...], gpu: ClaimedGpu, why: str
) -> None:
    site.gpu = gpu
    await site.begin(*flags)
    engine = site.engine()

    how = await engine.stop(site.blue)
    ended = await site.run() is None
    again = await engine.launch(site.blue, 60)

    assert "is stopped, since it cannot sleep" in str(how)
    assert why in str(how)
    assert ended
    assert (again.name, again.address, again.setting) == (
        site.blue.name,
        site.blue.address,
        site.blue.setting,
    )
    assert await site.answers()


async def test_a_server_with_open_requests_is_stopped(site: Sleepy) -> None:
    await site.begin("--sim-speed", "0.05")
    asking = asyncio.create_task(site.answers())
    engine = site.engine()

    async def busy() -> bool:
        return await engine.busy(site.blue) == 1

    async with asyncio.timeout(60):
        while not await busy():
            await asyncio.sleep(0.05)
    how = await engine.stop(site.blue)
    with suppress(aiohttp.ClientError):
        await asking

    assert "cannot sleep: 1 requests are open" in str(how)
    assert await site.run() is None


async def test_a_server_that_does_not_wake_is_ended_and_started_by_the_next_launch(site: Sleepy) -> None:
    await site.begin("--sim-fault", "*:wake_fails")
    engine, began = site.engine(), await site.run()
    await engine.stop(site.blue)

    with pytest.raises(ActError, match=r"did not wake, and is started instead: .*wake_up: 500"):
        await engine.launch(site.blue, 60)
    ended = await site.run() is None
    again = await engine.launch(site.blue, 60)

    assert ended
    assert (again.name, again.address) == (site.blue.name, site.blue.address)
    assert await site.run() != began
    assert await site.answers()


async def test_a_server_that_dies_asleep_is_started_by_the_next_launch(site: Sleepy) -> None:
    await site.begin("--sim-fault", "*:die_asleep=1")
    engine = site.engine()
    await engine.stop(site.blue)
    async with asyncio.timeout(60):
        while await site.run() is not None:
            await asyncio.sleep(0.1)

    with pytest.raises(ActError, match="ended while it slept: it is started instead"):
        await engine.launch(site.blue, 60)
    again = await engine.launch(site.blue, 60)

    assert (again.name, again.address) == (site.blue.name, site.blue.address)
    assert await site.answers()


@pytest.mark.parametrize("site", ["docker", "process, adopted"], indirect=True)
async def test_a_server_that_its_owner_started_again_meanwhile_is_not_taken_for_asleep(site: Sleepy) -> None:
    await site.begin()
    engine = site.engine()
    await engine.stop(site.blue)
    await site.restart()

    observed = list(await engine.observe())
    again = await engine.launch(site.blue, 60)

    assert observed == [site.blue]
    assert again == site.blue
    assert await site.answers()


async def test_a_sleeping_server_can_be_retired(site: Sleepy) -> None:
    await site.begin()
    engine = site.engine()
    await engine.stop(site.blue)

    await engine.retire(site.blue)
    await engine.retire(site.blue)

    assert list(await engine.observe()) == []
    with pytest.raises((aiohttp.ClientError, OSError)):
        await site.answers()
