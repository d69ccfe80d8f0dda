"""Faults of a swap in which the old container sleeps and the proxy holds requests: it serves again, awake."""

import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import StartDocker
from tests.e2e.docker_rig import CUT, FLAGS, DockerRig, DockerSiteConfig, all_is_well, own_site
from tests.e2e.test_docker_failures import FAULTS, assert_rolled_back, in_canary, inflict_on
from tests.support.claimed_gpu import DEV, SLEEPS, sleeps
from tests.support.docker_site import BENCH, Bench, RunningContainer
from tests.support.own_dockerd import OwnEngine
from tests.support.rig import Document, lost, until

pytestmark = pytest.mark.timeout(240)

CAUSES = {"docker pause": "its container is paused"}  # with a serving blue a pause is no evidence
HOLDS_S = 120.0

# 100 MiB, of which a server that is awake takes 95: as much as fits into a small container besides.
SMI = """#!{python}
from urllib.request import urlopen

import docker

used = 0
api = docker.APIClient(base_url={engine!r}, version="auto")
for one in api.containers(filters={{"label": "{label}={bench}"}}):
    for network in one["NetworkSettings"]["Networks"].values():
        try:
            with urlopen(f"http://{{network['IPAddress']}}:8000/is_sleeping", timeout=5) as answer:
                used += 2 if b"true" in answer.read() else 95
        except (OSError, ValueError):
            pass
print(f"{number}, GPU-1, {{used}}, 0, 100, [N/A]")
"""


@contextmanager
def claimed(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str | None = None
) -> Iterator[Path]:
    """The device of a GPU that only its name claims to be one, and the program that tells its memory."""
    number = 1000 + os.getpid() % 9000
    device = Path(f"/dev/nvidia{number}")
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    named = SMI.format(python=sys.executable, engine=engine, label=BENCH, bench=bench.prefix, number=number)
    program.write_text(named)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    yield device
    device.unlink()


@pytest.fixture
def gpu(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with claimed(bench, tmp_path, monkeypatch) as device:
        yield device


@pytest.fixture
def own_gpu(
    own_bench: Bench, engine: OwnEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    with claimed(own_bench, tmp_path, monkeypatch, engine.host) as device:
        yield device


async def sleepy(
    bench: Bench, gpu: Path, *flags: str, memory: int = 0, config: Document | None = None
) -> RunningContainer:
    return await bench.serving(
        *FLAGS, SLEEPS[0], *flags, env=DEV, memory=memory, config=config, host=_device(gpu)
    )


def _device(gpu: Path) -> Document:
    return {"Devices": [{"PathOnHost": str(gpu), "PathInContainer": str(gpu), "CgroupPermissions": "rwm"}]}


def config(**options: float) -> DockerSiteConfig:
    """The swap's only step does not end by itself."""
    return DockerSiteConfig(strategy="swap", waits_s=HOLDS_S, hold_s=60.0, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def without_restart(bench: Bench, blue: RunningContainer) -> AsyncIterator[None]:
    before = (await bench.spec(blue)).state.started_at
    yield
    assert (await bench.spec(blue)).state.started_at == before


@pytest.fixture
async def own_rig(
    own_bench: Bench, engine: OwnEngine, own_gpu: Path, tmp_path: Path
) -> AsyncIterator[DockerRig]:
    """With an Engine that a test may kill."""
    flags, host = (SLEEPS[0],), _device(own_gpu)
    async with own_site(tmp_path / "site", config(), own_bench, engine, *flags, env=DEV, host=host) as rig:
        yield rig


async def until_asleep(rig: DockerRig, blue: RunningContainer) -> None:
    async def is_asleep() -> bool:
        return (await rig.containers())[blue.name]["State"]["Running"] and await sleeps(blue.address)

    await until(is_asleep, bool, f"{blue.name} to sleep")


@pytest.mark.parametrize("name", ["docker kill", pytest.param("docker pause", marks=pytest.mark.slow)])
async def test_a_green_with_a_container_fault_wakes_the_server_that_sleeps(
    bench: Bench, gpu: Path, docker_site: StartDocker, name: str
) -> None:
    fault = replace(FAULTS[name], cause=CAUSES.get(name, FAULTS[name].cause))
    blue = await sleepy(bench, gpu, **fault.blue)
    rig = await docker_site(config(), blue)

    async with without_restart(bench, blue):
        async with in_canary(rig) as (traffic, change):
            await until_asleep(rig, blue)
            green = (await rig.container("chat-r1"))["Id"]
            await inflict_on(rig, green, fault, traffic)
            rollout = await rig.ended(change)
        await assert_rolled_back(rig, blue, rollout, cause=fault.cause, logged=fault.logged)

    assert {record.outcome for record in lost(traffic)} <= {*CUT, "aborted"}, lost(traffic)  # open at green
    assert rig.named_in_journal(f"{blue.name} sleeps: ")


async def swap(rig: DockerRig, to: int = 16) -> tuple[Document, set[str]]:
    """Return the rollout, and why requests failed."""
    async with rig.clients(rate=6.0, timeout_s=180.0) as traffic:
        rollout = await rig.switch(max_num_seqs=to)
    return rollout, {record.why for record in lost(traffic)}


async def test_a_green_that_exits_at_its_start_costs_no_request(
    bench: Bench, gpu: Path, docker_site: StartDocker
) -> None:
    blue = await sleepy(bench, gpu, "--sim-fault", "max_num_seqs=16:exit")
    rig = await docker_site(config(), blue)

    async with without_restart(bench, blue):
        rollout, why_lost = await swap(rig)

    assert (rollout["outcome"], why_lost) == ("rolled_back", set()), rollout["why"]
    assert "exited with code 1" in rollout["why"]
    await all_is_well(rig)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # docker-py leaves its socket open
async def test_blue_is_started_again_when_the_docker_engine_was_killed_while_it_slept(
    own_rig: DockerRig, engine: OwnEngine
) -> None:
    """The next Engine stops all containers, the sleeping one, too."""
    blue = own_rig.blue[0]
    async with in_canary(own_rig) as (traffic, change):
        await until_asleep(own_rig, blue)
        await engine.kill()
        await engine.start()
        rollout = await own_rig.ended(change)

    assert rollout["outcome"] == "rolled_back", rollout
    assert await own_rig.consistent_servers() == [blue.name]
    assert {record.outcome for record in lost(traffic)} <= {*CUT, "aborted"}
    await all_is_well(own_rig)
