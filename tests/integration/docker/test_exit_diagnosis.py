"""Diagnosis of container failures, each reproduced with a real Engine where possible."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flettner.actuators.docker.container import Container
from flettner.actuators.docker.engine import DockerEngine
from flettner.actuators.docker.exit_diagnosis import (
    ObservedEvents,
    describe_exit,
    was_ended_from_outside,
    with_fix,
)
from flettner.actuators.docker.registry import container_name
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.vllm_facts.values import Setting
from tests.support.docker_engine_rig import EngineRig, until
from tests.support.docker_site import Bench
from tests.support.docker_socket import EngineSocket
from tests.support.engine_watch import watched

OOM = "import time; hoard = bytearray(300 << 20); time.sleep(60)"


async def failed(here: EngineRig, engine: DockerEngine, setting: Setting, deadline_s: float = 60) -> ActError:
    """Launch a green that fails; return the error and assert that nothing is left."""
    with pytest.raises(ActError) as failure:
        await engine.launch(Server(name="chat-r1", setting=setting), deadline_s)
    assert await here.left() == {}
    return failure.value


# During startup.


async def test_quotes_a_rejected_value_from_the_log(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()

    error = await failed(here, engine, {**blue.setting, "max_num_seqs": "many"})

    assert error.why.startswith("chat-r1 exited with code 2: unknown flag, or a value of the wrong kind: ")
    assert "--max-num-seqs" in error.why
    assert error.log
    assert list(await engine.observe()) == [blue]


async def test_reports_insufficient_gpu_memory_as_the_cause(here: EngineRig) -> None:
    _, engine, blue = await here.adopt("--sim-oom-above", "0.95", "--gpu-memory-utilization", "0.9")

    error = await failed(here, engine, {**blue.setting, "gpu_memory_utilization": 0.99})

    assert error.why.startswith("chat-r1 exited with code 1")
    assert "out of memory" in error.why.lower()


async def test_reports_insufficient_host_memory_as_the_cause(here: EngineRig) -> None:
    await here.keep("--sim-start-s=60", Memory=12 << 20, MemorySwap=12 << 20)

    error = await failed(here, here.engine(), {})

    assert "killed by the kernel, out of memory: it needed more than its limit of 12 MiB" in error.why


async def test_reports_the_last_health_response_of_a_late_server(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()

    error = await failed(here, engine, {**blue.setting, "sim_start_s": 3600}, deadline_s=2)

    assert "chat-r1 was not healthy within 2 s: /health is not reachable" in error.why


async def test_reports_a_manual_removal_during_startup(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()
    setting = {**blue.setting, "sim_start_s": 3600}
    launch = asyncio.create_task(failed(here, engine, setting))
    async with asyncio.timeout(60):
        while "running" not in (await here.left()).values():
            await asyncio.sleep(0.1)

    await here.bench.client.remove(container_name(here.site, "chat-r1"))

    assert "chat-r1 was removed by a third party" in (await launch).why


@pytest.mark.parametrize("init", [True, False])
async def test_names_a_missing_program(here: EngineRig, init: bool) -> None:
    await here.keep("--sim-start-s=0.2", Init=init)
    here.change_kept("Config", Entrypoint=["/opt/none/vllm", "serve"])

    error = await failed(here, here.engine(), {})

    assert "the image has no such program" in error.why


async def test_names_a_missing_image(here: EngineRig) -> None:
    image = await here.bench.simulator()
    first = await here.bench.run(name="first")
    name = f"flettner-test/{here.bench.prefix}gone"
    tag = f"{name}:1"
    await here.bench.engine(lambda api: api.commit(first.id, repository=name, tag="1"))
    container = await here.bench.serving(image=replace(image, tag=tag))
    engine = here.engine()
    await engine.observe()
    await here.bench.client.remove(container.id)
    await here.bench.engine(lambda api: api.remove_image(tag, force=True))

    error = await failed(here, engine, {})

    assert "its image is gone" in error.why


async def test_names_a_missing_network(here: EngineRig) -> None:
    network = await here.bench.network("llm")
    container = await here.bench.serving(networks=[network])
    engine = here.engine()
    await engine.observe()
    await here.bench.client.remove(container.id)
    await here.bench.engine(lambda api: api.remove_network(network))

    error = await failed(here, engine, {})

    assert "network" in error.why
    assert "create it again" in error.why


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("open('/data/x', 'wb').write(bytes(2 << 20))", "exited with code 1: invalid value, or the engine "),
        (
            "print('EngineDeadError: EngineCore died')",
            "exited with code 0, after its engine died: EngineDead",
        ),
    ],
)
async def test_reports_a_full_disk_or_a_dead_engine_core_from_the_log(
    here: EngineRig, tmp_path: Path, python: str, why: str
) -> None:
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nexec python3 -c "{python}"\n')
    program.chmod(0o755)
    binds = [*(await here.bench.simulator()).binds, f"{program}:/opt/vllm/bin/vllm:ro"]
    await here.keep("--sim-start-s=0.2", Binds=binds, Tmpfs={"/data": "size=1m"})

    error = await failed(here, here.engine(), {})

    assert error.why.startswith(f"chat-r1 {why}")
    assert "EngineDeadError" in error.why or "No space left on device" in error.why


# While serving.


@dataclass(frozen=True, kw_only=True)
class Loss:
    """`inflict`: what happens to the container. A failed health check may be reported before an exit."""

    inflict: Callable[["Adopted"], Awaitable[object]]
    says: tuple[str, ...]
    gone: bool = True
    options: dict[str, Any] = field(default_factory=dict)  # of the container


@dataclass(frozen=True)
class Adopted:
    bench: Bench
    id: str
    engine: DockerEngine
    server: Server

    async def kill_process(self) -> None:
        os.kill((await self.bench.engine(lambda api: api.inspect_container(self.id)))["State"]["Pid"], 9)

    async def execute(self, python: str) -> None:
        words = ["python3", "-c", python]
        run = await self.bench.engine(lambda api: api.exec_create(self.id, words))
        await self.bench.engine(lambda api: api.exec_start(run["Id"]))

    async def exceed_memory(self) -> None:
        await self.execute(OOM)
        await self.bench.client.kill(self.id)

    async def disconnect(self) -> None:
        await self.bench.disconnect("bridge", self.id)


LOSSES = {
    "docker kill": Loss(
        inflict=lambda it: it.bench.client.kill(it.id),
        says=("was killed by a third party (docker kill, SIGKILL)",),
    ),
    "docker stop": Loss(
        inflict=lambda it: it.bench.client.stop(it.id, 5),
        says=("was stopped by a third party (docker stop, or docker compose (project llm))",),
        options={"labels": {"com.docker.compose.project": "llm"}},
    ),
    "docker rm": Loss(
        inflict=lambda it: it.bench.client.remove(it.id),
        says=("was removed by a third party (docker rm)",),
    ),
    "by flettner": Loss(inflict=lambda it: it.engine.stop(it.server), says=("was ended by flettner",)),
    "kill -9": Loss(inflict=Adopted.kill_process, says=("was killed by SIGKILL",)),
    "restarted by its policy": Loss(
        inflict=Adopted.kill_process,
        says=("was restarted by Docker", "was killed by SIGKILL"),
        gone=False,
        options={"restart": "always"},
    ),
    "exit": Loss(
        inflict=lambda it: it.execute("import os, signal; os.kill(1, signal.SIGTERM)"),
        says=("exited with code 0",),
    ),
    "out of memory": Loss(
        inflict=Adopted.exceed_memory,
        says=("killed by the kernel, out of memory: it needed more than its limit of 96 MiB",),
        options={"memory": 96 << 20},
    ),
    "docker pause": Loss(
        inflict=lambda it: it.bench.engine(lambda api: api.pause(it.id)),
        says=("times in a row: its container is paused",),
        gone=False,
    ),
    "docker network disconnect": Loss(
        inflict=Adopted.disconnect,
        says=("times in a row: its container is disconnected from its network",),
        gone=False,
    ),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
async def test_reports_the_cause_of_a_loss_and_the_last_lines(here: EngineRig, loss: Loss) -> None:
    container, engine, blue = await here.adopt(**loss.options)

    async with watched(engine, blue) as said:
        await loss.inflict(Adopted(here.bench, container.id, engine, blue))
        await until(lambda: said and said[-1].gone == loss.gone)
    runs = [server.name for server in await engine.observe()]

    assert said[-1].why.startswith(f"{blue.name} ")
    assert all(words in said[-1].why for words in loss.says)
    assert said[-1].log
    assert runs == ([] if loss.gone else [blue.name])


async def test_a_renamed_container_is_not_lost(here: EngineRig) -> None:
    container, engine, blue = await here.adopt()

    async with watched(engine, blue) as said:
        await here.bench.rename(container.id, "other")
        await asyncio.sleep(1)
        assert said == []
        await here.bench.client.kill(container.id)
        await until(lambda: said and said[-1].gone)

    assert said[-1].gone


# docker-py leaves its socket open when the Engine exits during the response head.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_server_is_not_lost_while_the_docker_engine_is_unreachable(
    here: EngineRig, docker_socket: EngineSocket
) -> None:
    container, _, blue = await here.adopt()
    engine = here.engine(host=docker_socket.host)

    async with watched(engine, blue) as said:
        await docker_socket.close()
        await asyncio.sleep(2)
        assert said == []
        assert await engine.busy(blue) == 0
        with pytest.raises(ActError):
            await engine.observe()
        await docker_socket.open()
        await asyncio.sleep(1)
        assert said == []
        await docker_socket.close()
        await here.bench.client.kill(container.id)
        await until(lambda: said)
        await docker_socket.open()
        await until(lambda: said[-1].gone)

    assert [loss.gone for loss in said[:-1]] == [False] * (len(said) - 1)
    assert said[-1].why.startswith(f"{blue.name} was killed by SIGKILL")
    gc.collect()


async def test_reports_a_container_that_exited_before_the_watch(here: EngineRig) -> None:
    container, engine, blue = await here.adopt()
    await here.bench.client.remove(container.id)

    async with watched(engine, blue) as said:
        await until(lambda: said)

    assert [(loss.gone, loss.why) for loss in said] == [(True, f"{blue.name} has no container any more")]


# Descriptions without an Engine.


@pytest.mark.parametrize(
    ("state", "observed", "why"),
    [
        (
            {"Status": "created", "Error": "no such device"},
            ObservedEvents(),
            "could not be started: no such device",
        ),
        (
            {"Status": "exited", "ExitCode": 137, "OOMKilled": True},
            ObservedEvents(),
            "was killed by the kernel",
        ),
        ({"Status": "exited", "ExitCode": 0}, ObservedEvents(), "exited with code 0"),
        ({"Status": "exited", "ExitCode": 1}, ObservedEvents(exit_code=1), "exited with code 1"),
        ({"Status": "exited", "ExitCode": 139}, ObservedEvents(), "was killed by SIGSEGV"),
    ],
)
def test_describes_the_exit(state: dict[str, Any], observed: ObservedEvents, why: str) -> None:
    assert describe_exit(Container.parse({"State": state}), observed).startswith(why)


def test_describes_the_exit_of_an_auto_removed_container() -> None:
    assert describe_exit(None, ObservedEvents(exit_code=1)).startswith("exited with code 1")
    assert (
        describe_exit(None, ObservedEvents(exit_code=137, signals=[9]))
        == "was removed by a third party (docker rm)"
    )


EXITED = {"Status": "exited", "ExitCode": 137}


@pytest.mark.parametrize(
    ("state", "observed", "outside"),
    [
        pytest.param(EXITED, ObservedEvents(exit_code=137, signals=[9]), True, id="docker kill"),
        pytest.param(EXITED, ObservedEvents(exit_code=0, signals=[15], stopped=True), True, id="docker stop"),
        pytest.param(None, ObservedEvents(exit_code=137, signals=[9]), True, id="docker rm --force"),
        pytest.param(None, ObservedEvents(), True, id="docker rm"),
        pytest.param(None, ObservedEvents(exit_code=1), False, id="exited and removed"),
        pytest.param({**EXITED, "OOMKilled": True}, ObservedEvents(exit_code=137), False, id="its limit"),
        pytest.param(EXITED, ObservedEvents(oom=True, signals=[9]), False, id="a child's memory"),
        pytest.param(EXITED, ObservedEvents(exit_code=137), False, id="perhaps memory of the host"),
        pytest.param({"Status": "exited", "ExitCode": 1}, ObservedEvents(exit_code=1), False, id="a crash"),
        pytest.param({"Status": "created"}, ObservedEvents(), False, id="never started"),
    ],
)
def test_knows_whether_a_third_party_ended_a_container(
    state: dict[str, Any] | None, observed: ObservedEvents, outside: bool
) -> None:
    spec = None if state is None else Container.parse({"State": state})

    assert was_ended_from_outside(spec, observed) is outside


def test_an_error_states_the_remedy() -> None:
    said = "docker: start x: write /var/lib/docker/x: no space left on device"

    assert with_fix(said) == f"{said} (the disk is full: free space where Docker keeps its data)"
    assert with_fix("docker: something new") == "docker: something new"
