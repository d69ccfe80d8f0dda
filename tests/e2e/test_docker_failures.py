"""Faults of real containers: the expected server keeps serving, and the audit names the cause."""

import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import docker
import pytest

from flettner.simulator.traffic import Load, TrafficGenerator
from tests.e2e.conftest import StartDocker
from tests.e2e.docker_rig import CUT, FLAGS, SOME, DockerRig, DockerSiteConfig, all_is_well
from tests.support.docker_site import Bench, RunningContainer
from tests.support.rig import Document, lost, until

pytestmark = pytest.mark.timeout(180)

LONG = ((50, 1000, 50.0),)  # a canary that does not end by itself
SEVERAL = 30  # requests that green answers
READY = "Application startup complete."

Inflict = Callable[[docker.APIClient, str], object]
"""Inflict the fault on the container with this id."""


# In a canary.


def run_in(*command: str) -> Inflict:
    def inflict(api: docker.APIClient, container: str) -> object:
        made = api.exec_create(container, list(command))
        return api.exec_start(made["Id"])

    return inflict


def freeze(api: docker.APIClient, container: str) -> None:
    os.kill(server_pid(api, container), signal.SIGSTOP)


def server_pid(api: docker.APIClient, container: str) -> int:
    processes = api.top(container)
    pid, command = processes["Titles"].index("PID"), processes["Titles"].index("CMD")
    return next(
        int(row[pid]) for row in processes["Processes"] if "flettner.simulator.server" in row[command]
    )


ENGINE_DIED = "(EngineCore pid=7) ERROR EngineCore encountered an issue. See stack trace for the root cause."
ASKED = "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=1)"
SOUND = {"Test": ["CMD", "python3", "-c", ASKED], "Interval": 2 * 10**9, "Timeout": 2 * 10**9, "Retries": 1}


@dataclass(frozen=True, kw_only=True)
class Fault:
    inflict: Inflict
    cause: str  # as the audit gives it
    blue: dict[str, Any] = field(default_factory=dict)
    silent: bool = False  # without open requests, else the judge sees the errors first
    logged: str = READY  # of green's own lines, in the rollout


FAULTS = {
    "docker kill": Fault(inflict=lambda api, it: api.kill(it), cause="killed by a third party (docker kill"),
    "docker pause": Fault(
        inflict=lambda api, it: api.pause(it),
        cause="its container is paused, which is no evidence",
        silent=True,
        logged="",
    ),
    "the engine died": Fault(
        inflict=run_in("sh", "-c", f"echo '{ENGINE_DIED}' > /proc/1/fd/1; kill -TERM -1"),
        cause="exited with code 0, after its engine died",
    ),
    "unhealthy": Fault(
        inflict=freeze,
        cause="its own health check says unhealthy",
        blue={"config": {"Healthcheck": SOUND}},
        silent=True,
    ),
}


@pytest.mark.parametrize(
    "name",
    ["docker kill", "docker pause", "the engine died", pytest.param("unhealthy", marks=pytest.mark.slow)],
)
async def test_rolls_back_a_green_with_a_container_fault(
    bench: Bench, docker_site: StartDocker, name: str
) -> None:
    fault = FAULTS[name]
    blue = await bench.serving(*FLAGS, **fault.blue)
    rig = await docker_site(DockerSiteConfig(steps=LONG), blue)

    async with in_canary(rig) as (traffic, change):
        green = (await rig.container("chat-r1"))["Id"]
        await inflict_on(rig, green, fault, traffic)
        rollout = await rig.ended(change)

    assert {record.outcome for record in lost(traffic)} <= CUT, lost(traffic)
    await assert_rolled_back(rig, blue, rollout, cause=fault.cause, logged=fault.logged)


@asynccontextmanager
async def in_canary(rig: DockerRig) -> AsyncIterator[tuple[TrafficGenerator, str]]:
    """Clients, a green that has answered some requests, and the id of the suggestion."""
    async with rig.users(SOME) as traffic:
        change = await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        await until(lambda: rig.answered("chat-r1"), lambda count: count > 1, "answers by green")
        yield traffic, change


async def assert_rolled_back(
    rig: DockerRig, blue: RunningContainer, rollout: Document, *, cause: str, logged: str
) -> None:
    """Assert a rollback with the cause in the audit; the same blue, never restarted, serves alone."""
    assert rollout["outcome"] == "rolled_back", rollout
    assert cause in rollout["why"], rollout["why"]
    assert rig.named_in_audit(cause)
    if logged:
        assert any(logged in line for line in rollout["log"]), rollout["log"]
        assert rig.named_in_audit(logged) or rig.named_in_journal(logged)
    assert await rig.consistent_servers() == [blue.name]
    left = await rig.container(blue.name)
    assert (left["Id"], left["RestartCount"]) == (blue.id, 0)
    await all_is_well(rig)


async def inflict_on(rig: DockerRig, container: str, fault: Fault, traffic: TrafficGenerator) -> None:
    async def in_flight() -> int:
        return traffic.tally.in_flight

    if fault.silent:
        traffic.load = Load(rate=0.001)
        await until(in_flight, lambda count: not count, "no open request")
    await rig.bench.engine(lambda api: fault.inflict(api, container))


# Other servers than green.


async def test_green_serves_alone_when_blue_is_removed_in_the_canary(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await bench.serving(*FLAGS, restart="always")
    rig = await docker_site(DockerSiteConfig(steps=LONG), blue)

    async with in_canary(rig) as (traffic, change):
        await bench.client.remove(blue.id)
        rollout = await rig.ended(change)

    assert rollout["outcome"] == "promoted", rollout
    assert "removed by a third party (docker rm)" in rollout["why"]
    assert rig.named_in_audit("removed by a third party (docker rm)")
    assert await rig.consistent_servers() == ["chat-r1"]
    assert {record.outcome for record in lost(traffic)} <= CUT
    policy = (await rig.container("chat-r1"))["HostConfig"]["RestartPolicy"]
    assert policy["Name"] == "always"
    await all_is_well(rig)


async def test_green_serves_while_blue_is_paused_in_the_canary(
    bench: Bench, docker_site: StartDocker
) -> None:
    """Docker reports the pause at once: requests already sent to blue wait, no later ones do."""
    blue = await bench.serving(*FLAGS)
    rig = await docker_site(DockerSiteConfig(steps=LONG), blue)

    async with in_canary(rig) as (_, change):
        split = await rig.weights()
        await bench.engine(lambda api: api.pause(blue.id))
        await until(rig.weights, {blue.name: 0, "chat-r1": 100}.__eq__, "the failover")
        async with rig.users(SOME) as later:
            await until(lambda: rig.answered("chat-r1"), lambda count: count > SEVERAL, "answers by green")
        target = await rig.target()
        await bench.engine(lambda api: api.unpause(blue.id))
        await until(rig.weights, split.__eq__, "the split of the step")
        rollout = await rig.rollout()

    assert blue.name in target["failover"]
    assert lost(later) == []
    assert (rollout["suggestion"], rollout["outcome"], rollout["phase"]) == (change, "running", "canary")


@pytest.mark.parametrize(
    ("inflict", "cause"),
    [
        (lambda api, it: api.remove_container(it, force=True), "removed by a third party (docker rm)"),
        pytest.param(
            lambda api, it: api.stop(it, timeout=2),
            "stopped by a third party (docker stop)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda api, it: os.kill(server_pid(api, it), signal.SIGKILL),
            "restarted by Docker",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["removed", "stopped", "in a crash loop"],
)
async def test_restarts_a_promoted_server_whose_container_was_removed(
    bench: Bench, docker_site: StartDocker, inflict: Inflict, cause: str
) -> None:
    blue = await bench.serving(*FLAGS, restart="always")
    rig = await docker_site(DockerSiteConfig(), blue)
    async with rig.users(SOME):
        await rig.switch(max_num_seqs=16)
    first = await rig.container("chat-r1")

    await bench.engine(lambda api: inflict(api, first["Id"]))
    await until(rig.running, ["chat-r2"].__eq__, "a server like it")

    assert await rig.consistent_servers() == ["chat-r2"]
    assert rig.named_in_audit(cause)
    again = await rig.container("chat-r2")
    assert again["Config"]["Cmd"] == first["Config"]["Cmd"]
    assert again["HostConfig"]["RestartPolicy"] == first["HostConfig"]["RestartPolicy"]
    await all_is_well(rig)


async def test_a_restarted_adopted_server_serves_and_can_be_changed(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await bench.serving(*FLAGS, restart="always")
    rig = await docker_site(DockerSiteConfig(), blue)
    inflicted: tuple[Inflict, ...] = (
        lambda api, it: api.restart(it, timeout=2),
        kill_and_wait,
        kill_and_wait,
    )

    for inflict in inflicted:
        await bench.engine(bind(inflict, blue.id))
        await bench.healthy(blue)
    await rig.until_in_audit("restarted by Docker")
    await all_is_well(rig)
    async with rig.users(SOME) as traffic:
        rollout = await rig.switch(max_num_seqs=16)

    assert (rollout["outcome"], await rig.consistent_servers()) == ("promoted", ["chat-r1"])
    assert lost(traffic) == []


def bind(inflict: Inflict, container: str) -> Callable[[docker.APIClient], object]:
    return lambda api: inflict(api, container)


def kill_and_wait(api: docker.APIClient, container: str) -> None:
    """Kill the container and wait until Docker has restarted it."""
    before = api.inspect_container(container)["State"]["Pid"]
    os.kill(server_pid(api, container), signal.SIGKILL)
    while api.inspect_container(container)["State"]["Pid"] in {0, before}:
        time.sleep(0.1)
    time.sleep(0.5)  # the shell of the entry point executes the server
