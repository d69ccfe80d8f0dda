"""A closed split: new requests get Retry-After, and open streams continue."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from tests.integration.envoy.steps import alone, kill_envoy
from tests.integration.envoy.test_proxy_requests import SensorOutput, listening
from tests.support.sse_backend import Backend, ask, count_answers, until


def closed(blue: Backend, number: int = 2, closed_s: float = 41.2) -> Route:
    return Route(
        number=number, servers=(blue.server,), weights={blue.name: 0}, fallback="", closed_s=closed_s
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health"])
async def test_a_rejected_request_gets_a_retry_after(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession, path: str
) -> None:
    await traffic.route(closed(blue))

    async with client.post(f"http://{traffic.listen}{path}", json={"stream": True}) as answer:
        body = await answer.json()

    assert (answer.status, answer.headers["retry-after"]) == (503, "42")
    assert answer.content_type == "application/json"
    assert answer.headers.getall("content-type") == ["application/json"]
    assert (body["error"]["type"], body["error"]["code"]) == ("service_unavailable", 503)
    assert "42 s" in body["error"]["message"]
    assert not blue.served


async def test_a_rejected_large_request_gets_a_retry_after(traffic: EnvoyTraffic, blue: Backend) -> None:
    await traffic.route(closed(blue))
    body = json.dumps({"prompt": "a" * (8 << 20)}).encode()

    heads = [await post(traffic.listen, body) for _ in range(5)]

    assert [head.startswith(b"HTTP/1.1 503 ") for head in heads] == [True] * 5
    assert [b"retry-after: 42\r\n" in head for head in heads] == [True] * 5


async def post(address: str, body: bytes) -> bytes:
    """Return the head of the answer, and drop what is not sent by then: aiohttp would go on to send it."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: chat\r\ncontent-length: %d\r\n\r\n" % len(body))
    writer.write(body)
    try:
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)  # while the transport closes


async def test_a_closed_split_needs_no_server(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    blue.chunks, blue.gap_s = 20, 0.05
    without_servers = Route(number=2, servers=(), weights={}, fallback="", closed_s=30.0)
    await traffic.route(alone(blue, 1))
    running = asyncio.create_task(ask(client, traffic.listen))

    async def arrived() -> bool:
        return bool(blue.served)

    await until(arrived)

    await traffic.route(without_servers)
    await traffic.keep_alive(without_servers)
    refused = await count_answers(client, traffic.listen, 10)
    answer = await running
    await traffic.route(alone(blue, 3))

    assert refused == {"503": 10}
    assert answer.good
    assert await count_answers(client, traffic.listen, 10) == {blue.name: 10}


async def test_the_proxy_may_start_closed_without_servers(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    without_servers = Route(number=2, servers=(), weights={}, fallback="", closed_s=30.0)

    for _ in range(2):
        await traffic.keep_alive(without_servers)
        assert await count_answers(client, traffic.listen, 10) == {"503": 10}
        await traffic.stop()
    await traffic.route(alone(blue, 3))

    assert await count_answers(client, traffic.listen, 10) == {blue.name: 10}


async def test_a_removed_server_may_be_replaced_before_reopening(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(closed(blue))
    moved = replace(blue.server, address=green.server.address)

    await traffic.route(replace(closed(blue, 3), servers=(moved,)))
    refused = await count_answers(client, traffic.listen, 5)
    await traffic.route(replace(alone(blue, 4), servers=(moved,)))

    assert refused == {"503": 5}
    assert await count_answers(client, traffic.listen, 5) == {green.name: 5}


async def test_a_killed_envoy_restarts_closed(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(closed(blue))
    await kill_envoy(traffic)

    await traffic.keep_alive(closed(blue))
    seen = await traffic.observe()

    assert await count_answers(client, traffic.listen, 5) == {"503": 5}
    assert seen is not None
    assert (seen.weights, seen.listening) == ({blue.name: 0}, True)


async def test_a_heartbeat_writes_nothing_while_it_stays_closed(traffic: EnvoyTraffic, blue: Backend) -> None:
    await traffic.route(closed(blue))
    before = traffic.files.path("rds").stat().st_mtime_ns

    for _ in range(5):
        await traffic.keep_alive(closed(blue))

    assert traffic.files.path("rds").stat().st_mtime_ns == before


async def test_reads_a_closed_split_from_envoy_when_its_file_is_broken(
    traffic: EnvoyTraffic, blue: Backend
) -> None:
    await traffic.route(closed(blue))
    traffic.files.path("rds").write_bytes(b"{")

    seen = await traffic.observe()

    assert seen is not None
    assert (seen.weights, seen.leased) == ({blue.name: 0}, None)


async def test_a_rejected_request_counts_as_no_server_failure(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    received = SensorOutput(tmp_path / "chat")
    async with listening(ProxyRequests(every_s=0.1), received):
        await traffic.route(closed(blue))
        await count_answers(client, traffic.listen, 10, stream=True)
        await traffic.route(alone(blue, 3))
        await ask(client, traffic.listen)
        await received.until_counted(1)
        await asyncio.sleep(0.6)  # longer than Envoy buffers a record

    assert received.counts == {(blue.name, "ok"): 1}
    assert received.states == [("proxy_requests", True)]
