"""HTTP: streams, limits, malformed requests, an unreachable engine, and log lines."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, ClientSession
from structlog.testing import capture_logs

from flettner.tools.docker_proxy import proxy
from tests.unit.docker_proxy.rig import VLLM, Rig, rigged


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as made:
        yield made


async def raw(rig: Rig, sent: bytes) -> bytes:
    """Send raw bytes and return the answer up to the close of the connection."""
    reader, writer = await asyncio.open_unix_connection(str(rig.socket))
    writer.write(sent)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), timeout=30)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("path", ["/v1.41/events", "/containers/vllm/logs?follow=1&stdout=1"])
async def test_a_stream_is_forwarded_without_buffering(rig: Rig, path: str) -> None:
    async with rig.client.get(f"http://x{path}") as stream:  # headers arrive before the first event
        for chunk in (b"\x01\0\0\0\0\0\0\x02", b"hi", b'{"Action":"die"}\n'):
            rig.engine.events.put_nowait(chunk)
            assert await stream.content.readexactly(len(chunk)) == chunk
        rig.engine.events.put_nowait(None)
        assert await stream.read() == b""


async def test_a_disconnected_client_ends_the_stream_of_the_engine(rig: Rig) -> None:
    async with rig.client.get("http://x/events"):
        assert rig.engine.listeners == 1
    async with asyncio.timeout(30):
        while rig.engine.listeners:
            await asyncio.sleep(0.01)


async def test_a_stream_aborted_by_the_engine_does_not_look_complete(rig: Rig) -> None:
    async with rig.client.get("http://x/events") as stream:
        rig.engine.events.put_nowait(b"half")
        assert await stream.content.readexactly(4) == b"half"
        rig.engine.events.put_nowait(b"")
        with pytest.raises(ClientPayloadError):
            await stream.content.readany()


async def test_answers_keep_their_status_and_headers(rig: Rig) -> None:
    async with rig.client.head("http://x/_ping") as reply:
        assert (reply.status, reply.headers["Api-Version"]) == (200, "1.41")


async def test_a_connection_upgrade_is_refused(rig: Rig) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}

    status, why = await rig.ask("POST", "/containers/vllm/start", headers=upgrade)

    assert (status, rig.engine.received) == (403, [])
    assert "taken over" in why


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_unread(rig: Rig, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 10_000

    body = pieces() if chunked else b" " * 400_000
    status, _ = await rig.ask("POST", "/containers/create?name=flettner-x", data=body)

    assert (status, rig.engine.received) == (413, [])


async def test_a_compressed_body_is_refused(rig: Rig) -> None:
    status, _ = await rig.ask(
        "POST", "/containers/create?name=flettner-x", data=b"{}", headers={"Content-Encoding": "gzip"}
    )

    assert status == 403


async def test_a_slow_body_is_refused_and_delays_no_other_client(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "BODY_WITHIN_S", 0.5)
    reader, writer = await asyncio.open_unix_connection(str(rig.socket))
    writer.write(
        b"POST /containers/create?name=flettner-x HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
    )

    assert (await rig.ask("GET", "/_ping"))[0] == 200
    assert b"403" in await asyncio.wait_for(reader.readline(), timeout=30)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET _ping HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /containers/create HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /build HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"GET /_ping HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"POST /containers/x/start HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=["tls", "no slash", "negative", "two lengths", "two different lengths", "headers", "chunks"],
)
async def test_garbage_is_refused_and_never_forwarded(rig: Rig, garbage: bytes) -> None:
    answer = await raw(rig, garbage)

    assert b" 200 " not in answer
    assert rig.engine.changes == []
    assert (await rig.ask("GET", "/_ping"))[0] == 200


async def test_each_request_on_a_connection_is_checked_separately(rig: Rig) -> None:
    first = b"GET /_ping HTTP/1.1\r\nHost: x\r\n\r\n"
    second = b"POST /containers/postgres/stop HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    answer = await raw(rig, first + second)

    assert answer.index(b" 200 ") < answer.index(b" 403 ")
    assert rig.engine.changes == []


async def test_too_many_concurrent_requests_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_AT_ONCE", 1)
    async with rig.client.get("http://x/events"):
        assert (await rig.ask("GET", "/_ping"))[0] == 503


async def test_a_refusal_is_one_line_with_its_reason_and_no_secret(rig: Rig) -> None:
    bad = {**VLLM, "Env": ["HF_TOKEN=hunter2"], "HostConfig": {"Privileged": True}}
    with capture_logs() as lines:
        status, why = await rig.create(bad)

    assert status == 403
    assert why == "flettner-docker-proxy: HostConfig.Privileged: must be left empty"
    (line,) = lines
    assert line["event"] == "refused"
    assert line["reason"] == "HostConfig.Privileged: must be left empty"
    assert (line["method"], line["target"]) == ("POST", "/v1.41/containers/create")
    assert "uid" in line
    assert "hunter2" not in str(line)


async def test_changes_are_logged_and_reads_are_not(rig: Rig) -> None:
    with capture_logs() as lines:
        await rig.ask("GET", "/containers/vllm/json")
        await rig.ask("POST", "/containers/vllm/stop")

    assert [line["event"] for line in lines] == ["passed"]


async def test_an_unreachable_engine_is_reported(rig: Rig) -> None:
    Path(rig.policy.socket.engine).unlink()
    async with ClientSession(connector=rig.client.connector, connector_owner=False) as fresh:
        rig.client = fresh
        for method, path in (("GET", "/_ping"), ("POST", "/containers/vllm/stop")):
            status, why = await rig.ask(method, path)
            assert status == 502
            assert "the engine does not answer" in why


@pytest.mark.parametrize(
    "says", [b"[" * 200_000, b" " * (9 << 20), b"{", b"[]", b"\xff", b'{"Id": 7}', b"{}"]
)
async def test_an_invalid_answer_of_the_engine_refuses_the_request(rig: Rig, says: bytes) -> None:
    rig.engine.says = says

    status, _ = await rig.ask("POST", "/containers/vllm/stop")

    assert status == 502
    assert rig.engine.changes == []


async def test_the_socket_is_accessible_only_to_its_user_and_group(rig: Rig) -> None:
    assert rig.socket.stat().st_mode & 0o777 == 0o660
