"""The client of the Docker Engine with a real Engine and with an unresponsive or closed socket."""

import asyncio
import socket
import threading
from contextlib import aclosing

import pytest

from flettner.actuators.docker import client
from flettner.actuators.docker.client import DockerClient, Json
from flettner.agent.domain.errors import ActError
from flettner.clients.docker.events import RESYNC, THREAD_NAME
from tests.support.docker_site import BENCH, PORT, Bench
from tests.support.docker_socket import EngineSocket

SLEEPS: Json = {"Entrypoint": ["sleep", "600"], "Cmd": []}
SHORT_S = 1.0


@pytest.fixture
def impatient(docker_socket: EngineSocket) -> DockerClient:
    return DockerClient(host=docker_socket.host, timeout_s=SHORT_S)


async def body(bench: Bench, command: tuple[str, ...] = ("sleep", "600")) -> Json:
    image = await bench.simulator()
    return {
        "Image": image.tag,
        "Entrypoint": list(command),
        "Labels": {BENCH: bench.prefix},
        "HostConfig": {"Binds": list(image.binds), "NetworkMode": "none"},
    }


async def test_a_missing_object_is_none(bench: Bench) -> None:
    assert await bench.client.inspect(bench.prefix + "missing") is None
    assert await bench.client.image("flettner-test/nothing:1") is None
    assert await bench.client.list_containers({BENCH: bench.prefix}) == []
    assert await bench.client.tail(bench.prefix + "missing") == ()
    with pytest.raises(ActError, match="No such container"):
        await bench.client.log(bench.prefix + "missing")


async def test_reports_the_memory_of_a_running_container(bench: Bench) -> None:
    container = await bench.run(name="one", port=None, config=SLEEPS)
    held = await bench.client.memory(container.id)
    await bench.client.kill(container.id)

    assert held is not None
    assert 0 < held < 1 << 30
    assert await bench.client.memory(container.id) is None
    with pytest.raises(ActError, match="No such container"):
        await bench.client.memory(bench.prefix + "missing")


@pytest.mark.parametrize(
    ("said", "held"),
    [
        ({"usage": 1000, "stats": {"total_inactive_file": 300, "inactive_file": 1}}, 700),  # cgroup version 1
        ({"usage": 1000, "stats": {"inactive_file": 300, "anon": 5}}, 700),  # version 2
        ({"usage": 1000}, 1000),
        ({"usage": 100, "stats": {"inactive_file": 300}}, 0),
        ({"limit": 5}, None),
        ({}, None),
    ],
)
def test_held_memory_excludes_reclaimable_cache(said: Json, held: int | None) -> None:
    assert client._held_bytes(said) == held


async def test_lists_running_and_exited_containers_by_all_labels(bench: Bench) -> None:
    container = await bench.run(name="one", port=None, config=SLEEPS, labels={"of": "x"})
    await bench.run(name="two", port=None, config=SLEEPS)
    await bench.client.kill(container.id)

    summaries = await bench.client.list_containers({BENCH: bench.prefix, "of": "x"})
    any_value = await bench.client.list_containers({BENCH: bench.prefix, "of": ""})

    assert (
        [summary["Id"] for summary in summaries] == [container.id] == [summary["Id"] for summary in any_value]
    )


async def test_stopping_a_missing_or_exited_container_is_no_error(bench: Bench) -> None:
    container = await bench.run(port=None, config=SLEEPS)
    for name in (bench.prefix + "missing", container.id):
        await bench.client.kill(name)
        await bench.client.kill(name)
        await bench.client.stop(name, 1)
    for _ in range(2):
        await bench.client.remove(container.id)

    assert await bench.names() == set()


async def test_starting_a_running_container_is_no_error(bench: Bench) -> None:
    container = await bench.run(port=None, config=SLEEPS)
    before = (await bench.inspect(container))["State"]["StartedAt"]

    await bench.client.start(container.id)

    assert (await bench.inspect(container))["State"]["StartedAt"] == before


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"Image": "flettner-test/nothing:1"}, "No such image: flettner-test/nothing:1"),
        ({"HostConfig": {"NetworkMode": "no-such-network"}}, "no-such-network"),
        ({"Entrypoint": ["/no/such/program"]}, "no such file"),
    ],
    ids=["image", "network", "program"],
)
async def test_an_error_names_the_request_and_the_message_of_the_engine(
    bench: Bench, broken: Json, said: str
) -> None:
    name = bench.prefix + "broken"

    with pytest.raises(ActError) as refused:
        await bench.client.start(await bench.client.create(await body(bench) | broken, name))

    assert refused.value.why.startswith("docker: ")
    assert said in refused.value.why


async def test_reports_an_occupied_port_at_start(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        with pytest.raises(ActError, match="address already in use"):
            await bench.run(port=taken.getsockname()[1])

    assert await bench.names() == set()


async def test_an_occupied_name_is_not_the_requested_container(bench: Bench) -> None:
    await bench.client.create(await body(bench), bench.prefix + "one")

    with pytest.raises(ActError, match="already in use"):
        await bench.client.create(await body(bench), bench.prefix + "one")


async def test_a_restart_policy_can_be_changed(bench: Bench) -> None:
    container = await bench.run(port=None, config=SLEEPS, restart="always")

    await bench.client.restart_policy(container.id, {"Name": "no", "MaximumRetryCount": 0})

    inspected = await bench.inspect(container)
    assert inspected["HostConfig"]["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}


async def test_connects_a_network_with_aliases(bench: Bench) -> None:
    network = await bench.network("net")
    container = await bench.run(port=None, config=SLEEPS)
    for _ in range(2):
        await bench.client.connect(network, container.id, {"Aliases": ["blue"]})
    joined = (await bench.inspect(container))["NetworkSettings"]["Networks"]

    assert "blue" in joined[network]["Aliases"]
    assert set(joined) == {"bridge", network}
    with pytest.raises(ActError, match="not found"):
        await bench.client.connect(bench.prefix + "no-net", container.id, {})


async def test_the_log_tail_holds_the_last_lines_of_both_streams(bench: Bench) -> None:
    script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf 'not \\377 utf-8'"
    container_id = await bench.client.create(await body(bench, ("sh", "-c", script)), bench.prefix + "one")
    await bench.client.start(container_id)
    ended = await bench.client.wait(container_id)

    lines = await bench.client.tail(container_id, 3)

    assert ended
    assert ended.state.exit_code == 0
    assert len(lines) == 3
    assert "not \ufffd utf-8" in lines
    assert {"out 3", "err 3"} & set(lines)


async def test_a_one_off_run_returns_exit_code_and_output_and_is_removed(bench: Bench) -> None:
    script = "echo told; echo asked >&2; exit 3"

    code, output = await bench.client.run_once(
        await body(bench, ("sh", "-c", script)), bench.prefix + "once", 60
    )

    assert (code, sorted(output.split())) == (3, ["asked", "told"])
    assert await bench.names() == set()


async def test_removes_a_one_off_run_that_does_not_end(bench: Bench) -> None:
    command = ("sh", "-c", "echo still here; sleep 600")

    with pytest.raises(ActError, match="did not end within 1 s") as late:
        await bench.client.run_once(await body(bench, command), bench.prefix + "once", 1)

    assert late.value.log == ("still here",)
    assert await bench.names() == set()


async def test_removes_a_cancelled_one_off_run(bench: Bench) -> None:
    run = asyncio.create_task(bench.client.run_once(await body(bench), bench.prefix + "once", 60))
    while not await bench.names():
        await asyncio.sleep(0.01)

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert await bench.names() == set()


async def test_names_an_unreachable_engine() -> None:
    unreachable = DockerClient(host="unix:///run/no-such-engine.sock")

    for call in (
        unreachable.version(),
        unreachable.inspect("x"),
        unreachable.remove("x"),
        unreachable.create({}, "x"),
    ):
        with pytest.raises(ActError, match=r"no Engine at unix:///run/no-such-engine\.sock .* is it running"):
            await call
    assert await unreachable.tail("x") == ()


async def test_does_not_wait_for_an_unresponsive_engine(
    docker_socket: EngineSocket, impatient: DockerClient
) -> None:
    docker_socket.unanswered.add("/containers/x/json")

    with pytest.raises(ActError, match="did not answer within 1 s"):
        await impatient.inspect("x")


async def test_looks_up_a_create_without_a_response_instead_of_repeating_it(
    bench: Bench, docker_socket: EngineSocket, impatient: DockerClient
) -> None:
    docker_socket.unanswered.add("/containers/create")

    made = await impatient.create(await body(bench), bench.prefix + "one")

    container = await bench.client.inspect(made)
    assert container is not None
    assert container.name == f"{bench.prefix}one"
    assert docker_socket.times("/containers/create") == 1


async def test_looks_up_changes_without_a_response_instead_of_repeating_them(
    bench: Bench, docker_socket: EngineSocket, impatient: DockerClient
) -> None:
    network = await bench.network("net")
    container_id = (await bench.run(port=None, config=SLEEPS)).id
    await bench.client.kill(container_id)
    docker_socket.unanswered |= {"/start", "/kill", "/update", "/connect", "/stop", "DELETE "}

    await impatient.start(container_id)
    await impatient.connect(network, container_id, {"Aliases": ["blue"]})
    await impatient.restart_policy(container_id, {"Name": "always"})
    await impatient.stop(container_id, 1)
    await impatient.remove(container_id)

    assert await bench.names() == set()
    for words in ("/start", "/connect", "/update", "/stop", "DELETE "):
        assert docker_socket.times(words) == 1, words


async def test_a_change_without_a_response_and_without_effect_is_an_error(
    docker_socket: EngineSocket, impatient: DockerClient, bench: Bench
) -> None:
    docker_socket.unanswered.add("/containers/create")

    with pytest.raises(ActError, match="did not answer within 1 s"):
        await impatient.create({"Image": "flettner-test/nothing:1"}, bench.prefix + "one")


async def test_a_cancelled_create_completes(bench: Bench) -> None:
    create = asyncio.create_task(bench.client.create(await body(bench), bench.prefix + "one"))
    await asyncio.sleep(0)

    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create

    assert await bench.names() == {bench.prefix + "one"}


async def test_the_event_stream_starts_with_a_listing(bench: Bench) -> None:
    async with aclosing(bench.client.events(mine(bench))) as events:
        first = await anext(events)
        container = await bench.run(port=None, config=SLEEPS)
        await bench.client.kill(container.id)
        seen = [await anext(events) for _ in range(4)]

    assert first == RESYNC
    assert [event.action for event in seen] == ["create", "start", "kill", "die"]
    assert {event.actor for event in seen} == {container.id}


async def test_the_event_stream_resumes_when_the_engine_returns(
    bench: Bench, docker_socket: EngineSocket, impatient: DockerClient
) -> None:
    async with aclosing(impatient.events(mine(bench))) as events:
        assert await anext(events) == RESYNC
        container = await bench.run(port=None, config=SLEEPS)
        before = [(await anext(events)).action for _ in range(2)]
        await docker_socket.close()
        await bench.client.kill(container.id)
        await docker_socket.open()
        again = await anext(events)
        after = [(await anext(events)).action for _ in range(2)]

    assert before == ["create", "start"]
    assert again == RESYNC
    assert after == ["kill", "die"]


async def test_closing_the_event_stream_ends_its_thread(bench: Bench) -> None:
    async with aclosing(bench.client.events(mine(bench))) as events:
        await anext(events)

    while any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        await asyncio.sleep(0.01)


async def test_the_simulator_serves_from_its_image_and_ends_on_sigterm(bench: Bench) -> None:
    container = await bench.serving("--max-num-seqs", "8", memory=512 << 20)
    inspected = await bench.inspect(container)

    await bench.client.stop(container.id, 30)

    assert (inspected["Path"], inspected["Args"][0], inspected["Args"][-2:]) == (
        "vllm",
        "serve",
        ["--max-num-seqs", "8"],
    )
    assert inspected["NetworkSettings"]["Ports"][PORT][0]["HostPort"] == container.address.rpartition(":")[2]
    assert (await bench.inspect(container))["State"]["ExitCode"] == 0
    assert any("shutdown triggered" in line for line in await bench.said(container))


def mine(bench: Bench) -> dict[str, list[str]]:
    return {"type": ["container"], "label": [f"{BENCH}={bench.prefix}"]}
