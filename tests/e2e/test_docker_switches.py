"""Changing a flag of containers under load, in every strategy: no request is lost."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path

import pytest

from flettner.actuators.docker.client import Json
from flettner.simulator.traffic import TrafficGenerator
from flettner.vllm_facts.values import Value
from tests.e2e.conftest import StartDocker
from tests.e2e.docker_rig import FLAGS, SOME, DockerRig, DockerSiteConfig, until_ok
from tests.support.docker_site import Bench, RunningContainer
from tests.support.rig import Document, Probe, lost, until

pytestmark = pytest.mark.timeout(180)


async def test_replaces_three_servers_one_by_one_without_spare_capacity(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await three_pinned(bench)
    rig = await docker_site(DockerSiteConfig(), *blue)

    async with rig.observer() as answers, rig.sampling() as serving, rig.users() as traffic:
        suggestion, rollout = await rig.switch_proposed(max_num_seqs=16)
        servers = await rig.consistent_servers()

    assert suggestion["preflight"]["strategy"] == "replace", suggestion
    assert "pinned to its CPUs" in suggestion["preflight"]["why"]
    assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout
    assert servers == ["chat-r1", "chat-r2", "chat-r3"]
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert min(serving) >= 2
    assert {flags(container)["--max-num-seqs"] for container in (await rig.containers()).values()} == {"16"}
    assert {container["HostConfig"]["CpusetCpus"] for container in (await rig.containers()).values()} == {"0"}


@pytest.mark.slow
async def test_a_rollback_restores_the_same_three_containers(bench: Bench, docker_site: StartDocker) -> None:
    blue = await three_pinned(bench, "--sim-fault", "max_num_seqs=16:errors=0.5")
    rig = await docker_site(DockerSiteConfig(steps=((50, 20, 0.5),)), *blue)

    async with rig.sampling() as serving, rig.users() as traffic:
        rollout = await rig.switch(max_num_seqs=16)
        servers = await rig.consistent_servers()
        async with rig.users(SOME) as later:
            await until_ok(later, 10)

    assert (rollout["outcome"], rollout["strategy"]) == ("rolled_back", "replace"), rollout
    assert any(cause in rollout["why"] for cause in ("errors", "failed")), rollout["why"]
    assert servers == sorted(container.name for container in blue)
    assert {inspect["Id"] for inspect in (await rig.containers()).values()} == {
        container.id for container in blue
    }
    assert min(serving) >= 2
    assert {record.outcome for record in lost(traffic)} <= {"failed"}
    assert lost(later) == []


@pytest.mark.slow
async def test_changes_two_servers_by_surge_with_spare_capacity(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = [await bench.serving(*FLAGS, name=f"vllm{at}", memory=256 << 20) for at in range(2)]
    rig = await docker_site(DockerSiteConfig(), *blue)

    async with rig.observer() as answers, rig.sampling() as serving, rig.users() as traffic:
        suggestion, rollout = await rig.switch_proposed(max_num_seqs=16)
        servers = await rig.consistent_servers()

    assert suggestion["preflight"]["strategy"] == "surge", suggestion
    assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout
    assert servers == ["chat-r1", "chat-r2"]
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert min(serving) >= 2


@pytest.mark.smoke
async def test_changes_a_server_by_swap_without_spare_capacity(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await bench.serving(*FLAGS, cpuset_cpus="0")
    rig = await docker_site(DockerSiteConfig(warm_up_requests=2, waits_s=60.0), blue)

    suggestion, traffic, answers = await swap(rig, 16)

    (container,) = (await rig.containers()).values()
    assert flags(container)["--max-num-seqs"] == "16"
    assert "new requests wait in the proxy, at most 60 s each" in " ".join(suggestion["notes"])
    assert lost(traffic) == []
    assert {answer.status for answer in answers} == {"200"}


@pytest.mark.slow
async def test_estimates_a_swap_from_the_measured_previous_one(
    bench: Bench, docker_site: StartDocker
) -> None:
    slow = ("--sim-start-s", "8", "--max-num-seqs", "8", "--sim-speed", "2")
    blue = await bench.serving(*slow, cpuset_cpus="0")
    rig = await docker_site(DockerSiteConfig(warm_up_requests=2), blue)

    await swapped(rig, 16)
    seen = []
    for max_num_seqs in (12, 9):  # a second attempt in case the machine was busy
        planned_s, took_s = await swapped(rig, max_num_seqs)
        seen.append(f"planned {planned_s:.1f} s, took {took_s:.1f} s")
        if took_s == pytest.approx(planned_s, rel=0.2):
            return
    pytest.fail(f"no outage was as long as planned: {seen}")


async def swap(rig: DockerRig, max_num_seqs: int) -> tuple[Document, TrafficGenerator, list[Probe]]:
    """Run a swap under load; return its suggestion, the load and the answers to probes."""
    async with rig.probing() as answers, rig.users(SOME) as traffic:
        suggestion, rollout = await rig.switch_proposed(max_num_seqs=max_num_seqs)
        await rig.consistent_servers()
    assert (suggestion["preflight"]["strategy"], suggestion["class"]) == ("swap", "gated"), suggestion
    assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), str(rollout["why"])
    return suggestion, traffic, answers


async def swapped(rig: DockerRig, max_num_seqs: int) -> tuple[float, float]:
    """Run a swap under load; return the planned and the measured outage in seconds.

    Admitted requests are served to their end; new ones get Retry-After.
    """
    suggestion, traffic, answers = await swap(rig, max_num_seqs)
    assert {record.why for record in lost(traffic)} <= {"HTTP 503"}
    assert {answer.status for answer in answers} == {"200", "503"}
    away = [answer for answer in answers if answer.status == "503"]
    assert all(answer.retry_after for answer in away)
    back = next(answer for answer in answers if answer.status == "200" and answer.at > away[-1].at)
    return suggestion["preflight"]["outage_s"], back.at - away[0].at


async def test_every_docker_request_passes_the_docker_proxy(
    bench: Bench, docker_site: StartDocker, tmp_path: Path
) -> None:
    blue = await bench.serving(*FLAGS, "--sim-fault", "max_num_seqs=12:exit", restart="unless-stopped")
    async with docker_proxy(tmp_path, await bench.inspect(blue)) as proxy:
        rig = await docker_site(DockerSiteConfig(host=proxy.host), blue)
        async with rig.users(SOME) as traffic:
            good = await rig.switch(max_num_seqs=16)
            bad = await rig.switch(max_num_seqs=12)
            servers = await rig.consistent_servers()

    assert (good["outcome"], bad["outcome"]) == ("promoted", "rolled_back"), (good, bad)
    assert "exited with code 1" in bad["why"]
    assert servers == ["chat-r1"]
    assert lost(traffic) == []
    log = proxy.log.read_text()
    assert "containers/create" in log
    assert "refused" not in log


@dataclass(frozen=True, kw_only=True)
class Proxy:
    host: str
    log: Path


@asynccontextmanager
async def docker_proxy(folder: Path, blue: Json) -> AsyncIterator[Proxy]:
    """The socket proxy as a process; its policy allows only the adoption of blue and its clones."""
    with tempfile.TemporaryDirectory(
        prefix="proxy-"
    ) as short:  # the path of a unix socket has 107 bytes at most
        socket, log = Path(short) / "docker.sock", folder / "proxy.log"
        engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        read = [bind.split(":")[0] for bind in blue["HostConfig"]["Binds"]]
        policy = folder / "docker-proxy.toml"
        policy.write_text(f"""
            socket = {{ path = "{socket}", engine = "{engine}" }}
            containers = {{ adopt = ["{blue["Name"].lstrip("/")}"] }}
            create = {{ images = ["{blue["Config"]["Image"]}"] }}
            mounts = {{ read = {dumps(read)} }}
        """)
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-c",
                    "from flettner.tools.docker_proxy.main import main; raise SystemExit(main())",
                ),
                *("run", "--config", str(policy)),
                stderr=out,
            )
        try:
            await until(
                partial(asyncio.to_thread, log.read_text), lambda text: "listening" in text, "the proxy"
            )
            yield Proxy(host=f"unix://{socket}", log=log)
        finally:
            process.terminate()
            await process.wait()


async def three_pinned(bench: Bench, *more: str) -> list[RunningContainer]:
    """Three containers pinned to CPUs in place of GPUs; a fourth would share a CPU."""
    return [
        await bench.serving(*FLAGS, *more, name=f"vllm{at}", cpuset_cpus="0", memory=256 << 20)
        for at in range(3)
    ]


def flags(inspect: Json) -> dict[str, Value]:
    """The flags of the command in any order, such as "--max-num-seqs": "8"."""
    words = inspect["Config"]["Cmd"][1:]
    return dict(zip(words[::2], words[1::2], strict=True))
