"""A closed split with a hold: new requests wait for the server that opens it, up to a bound."""

import asyncio
import dataclasses
import io
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.ports import Site
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from tests.integration.envoy.steps import alone, kill_envoy, until_open
from tests.integration.envoy.test_closed import closed
from tests.integration.envoy.test_proxy_requests import SensorOutput, listening
from tests.support.sse_backend import Answer, Backend, ask, until

BODY = 4 << 20  # bytes, more than Envoy buffers of a request that waits


def holding(unbound: EnvoyPlugin, path: Path, *, epoch: int = 3, **options: float) -> EnvoyTraffic:
    changed = dataclasses.replace(unbound, **options)  # type: ignore[arg-type]  # floats and an int
    return changed.bind(Site(target="chat", state_dir=path / "chat", epoch=epoch))


@pytest.fixture
async def patient(unbound: EnvoyPlugin, tmp_path: Path) -> AsyncIterator[EnvoyTraffic]:
    """It holds for longer than a test takes."""
    bound = holding(unbound, tmp_path, hold_s=300.0, hold_requests=200)
    yield bound
    await bound.stop()


def asking(client: aiohttp.ClientSession, traffic: EnvoyTraffic, times: int) -> list[asyncio.Task[Answer]]:
    return [asyncio.create_task(ask(client, traffic.listen)) for _ in range(times)]


async def until_waiting(traffic: EnvoyTraffic, count: int) -> None:
    """Until Envoy has so many open requests that no server has."""
    admin = traffic._reported.admin

    async def waiting() -> bool:
        stats = await admin.stats(r"^http\.ingress\.downstream_rq_active$") or {}
        return stats.get("http.ingress.downstream_rq_active") == count

    await until(waiting)


@pytest.mark.smoke
async def test_what_arrives_in_an_outage_is_served_by_the_next_server(
    patient: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    blue.chunks, blue.gap_s = 20, 0.05
    await patient.route(alone(blue, 1))
    streams = asking(client, patient, 5)
    await until_waiting(patient, 5)

    await patient.route(closed(blue))
    finished = await asyncio.gather(*streams)
    held = asking(client, patient, 40)
    await until_waiting(patient, 40)
    reached = sum(green.served.values())
    await patient.route(alone(green, 3))
    answers = await asyncio.gather(*held)
    later = await ask(client, patient.listen)

    assert [answer.good for answer in finished] == [True] * 5
    assert reached == 0
    assert Counter((answer.good, answer.server) for answer in answers) == {(True, green.name): 40}
    assert (later.good, later.server) == (True, green.name)


async def test_a_crowd_larger_than_the_backlog_of_the_server_is_served(
    unbound: EnvoyPlugin, tmp_path: Path, blue: Backend, client: aiohttp.ClientSession
) -> None:
    traffic = holding(unbound, tmp_path, hold_s=300.0, hold_requests=600)
    await traffic.route(closed(blue))
    held = asking(client, traffic, 600)
    await until_waiting(traffic, 600)

    await traffic.route(alone(blue, 3))
    answers = await asyncio.gather(*held)
    await traffic.stop()

    assert Counter(answer.good for answer in answers) == {True: 600}


async def test_no_request_is_lost_while_an_outage_begins_and_ends_under_load(
    patient: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(alone(blue, 1))
    answers: list[Answer] = []
    over = asyncio.Event()

    async def keep_asking() -> None:
        while not over.is_set():
            answers.append(await ask(client, patient.listen))

    clients = [asyncio.create_task(keep_asking()) for _ in range(20)]
    for number in (2, 4, 6, 8):
        server = green if number % 4 else blue
        await patient.route(closed(blue if server is green else green, number))
        await asyncio.sleep(0.3)
        await patient.route(alone(server, number + 1))
        await asyncio.sleep(0.3)
    over.set()
    await asyncio.gather(*clients)

    assert [answer for answer in answers if not answer.good] == []
    assert {answer.server for answer in answers} == {blue.name, green.name}


async def test_past_the_bound_each_gets_a_retry_after(
    unbound: EnvoyPlugin, tmp_path: Path, blue: Backend, client: aiohttp.ClientSession
) -> None:
    traffic = holding(unbound, tmp_path, hold_s=1.0)
    await traffic.route(closed(blue))

    async with client.post(f"http://{traffic.listen}/v1/completions", json={"stream": True}) as answer:
        body = await answer.json()
    await traffic.stop()

    assert (answer.status, answer.headers["retry-after"]) == (503, "42")
    assert answer.content_type == "application/json"
    assert (body["error"]["type"], body["error"]["code"]) == ("service_unavailable", 503)
    assert "42 s" in body["error"]["message"]
    assert not blue.served


async def test_a_request_may_wait_after_another_one_waited_in_vain(
    unbound: EnvoyPlugin, tmp_path: Path, blue: Backend, client: aiohttp.ClientSession
) -> None:
    traffic = holding(unbound, tmp_path, hold_s=2.0)
    await traffic.route(closed(blue))
    refused = await ask(client, traffic.listen)

    held = asking(client, traffic, 5)
    await until_waiting(traffic, 5)
    await traffic.route(alone(blue, 3))
    answers = await asyncio.gather(*held)
    await traffic.stop()

    assert refused.status == 503
    assert [answer.good for answer in answers] == [True] * 5


async def test_more_than_the_queue_is_refused_at_once(
    patient: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(closed(blue))
    held = asking(client, patient, 200)
    await until_waiting(patient, 200)

    async with client.post(f"http://{patient.listen}/v1/completions", json={}) as answer:
        refused = (answer.status, answer.headers["retry-after"], (await answer.json())["error"]["code"])
    await patient.route(alone(blue, 3))
    answers = await asyncio.gather(*held)

    assert refused == (503, "42", 503)
    assert [answer.good for answer in answers] == [True] * 200


async def test_a_client_that_leaves_is_dropped(
    patient: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(closed(blue))
    held = asking(client, patient, 10)
    await until_waiting(patient, 10)

    for task in held[:7]:
        task.cancel()
    await until_waiting(patient, 3)
    await patient.route(alone(blue, 3))
    answers = await asyncio.gather(*held[7:])

    assert [answer.good for answer in answers] == [True] * 3
    assert blue.served == {"ok": 3}


async def test_a_long_request_waits_in_the_socket_of_its_client(
    patient: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(closed(blue))
    before = await _allocated_bytes(patient)
    body = b'{"prompt": "' + b"a" * BODY + b'"}'

    async def send() -> int:
        async with client.post(f"http://{patient.listen}/v1/completions", data=io.BytesIO(body)) as answer:
            return answer.status

    held = [asyncio.create_task(send()) for _ in range(50)]
    await until_waiting(patient, 50)
    await asyncio.sleep(1.0)  # while Envoy could read on
    taken = await _allocated_bytes(patient) - before
    await patient.route(alone(blue, 3))
    statuses = await asyncio.gather(*held)

    assert taken < 0.75 * 50 * BODY
    assert statuses == [413] * 50  # this backend takes 1 MiB: each has arrived


async def _allocated_bytes(traffic: EnvoyTraffic) -> int:
    stats = await traffic._reported.admin.stats(r"^server\.memory_allocated$") or {}
    return int(stats["server.memory_allocated"])


async def test_the_death_of_the_daemon_changes_nothing(
    patient: EnvoyTraffic, unbound: EnvoyPlugin, tmp_path: Path, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(closed(blue))
    held = asking(client, patient, 10)
    await until_waiting(patient, 10)
    next_daemon = holding(unbound, tmp_path, epoch=4, hold_s=300.0, hold_requests=200)

    await next_daemon.route(closed(blue, 3))
    held += asking(client, patient, 10)
    await until_waiting(patient, 20)
    await next_daemon.route(alone(blue, 4))
    answers = await asyncio.gather(*held)

    assert [answer.good for answer in answers] == [True] * 20


async def test_a_daemon_that_died_while_it_opened_leaves_no_request_behind(
    patient: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(closed(blue))
    held = asking(client, patient, 10)
    await until_waiting(patient, 10)
    content = patient.files.path("rds").read_bytes()
    await patient.route(alone(green, 3))
    await asyncio.gather(*held)

    await patient.files.put("rds", content, writer=patient._writer)
    served = await ask(client, patient.listen)
    await patient.route(closed(green, 5))
    waiting = asking(client, patient, 5)
    await until_waiting(patient, 5)
    await patient.route(alone(blue, 6))
    answers = await asyncio.gather(*waiting)

    assert served.server == green.name
    assert [(answer.good, answer.server) for answer in answers] == [(True, blue.name)] * 5


async def test_a_held_request_counts_as_one_of_the_server_and_without_its_wait(
    patient: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    blue.chunks, blue.gap_s = 20, 0.05
    received = SensorOutput(tmp_path / "chat")
    async with listening(ProxyRequests(every_s=0.1), received):
        await patient.route(closed(blue))
        held = asking(client, patient, 3)
        await until_waiting(patient, 3)
        await asyncio.sleep(2.0)
        await patient.route(alone(blue, 3))
        await until_open(patient, blue.name, 3)
        await asyncio.gather(*held)
        await received.until_counted(3)

    assert received.counts == {(blue.name, "ok"): 3}
    assert max(request.duration_s for request in received.requests) < 2.0


async def test_the_addresses_of_a_split_are_those_of_its_servers(
    patient: EnvoyTraffic, blue: Backend
) -> None:
    await patient.route(closed(blue))
    await patient.route(alone(blue, 3))

    seen = await patient.observe()

    assert seen is not None
    assert seen.addresses == {blue.name: blue.server.address}


async def test_an_envoy_that_was_killed_holds_again(
    patient: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await patient.route(closed(blue))
    await kill_envoy(patient)

    await patient.keep_alive(closed(blue))
    held = asking(client, patient, 5)
    await until_waiting(patient, 5)
    await patient.route(alone(blue, 3))

    assert [answer.good for answer in await asyncio.gather(*held)] == [True] * 5
