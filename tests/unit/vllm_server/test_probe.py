"""An invalid response of a server fails only that server."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.primitives.bounded import read_body

NESTED = b"[" * 100_000
GOOD = json.dumps({"data": [{"id": "m", "max_model_len": 64}]}).encode()
BAD = {
    "nothing": b"",
    "text": b"<html>",
    "nested": NESTED,
    "nested objects": b'{"data":' * 50_000,
    "no object": b"7",
    "another shape": b'{"data": {"id": 7}}',
    "no entries": b'{"data": []}',
    "infinite": b'{"data": [{"id": "m", "max_model_len": 1e999}]}',
    "not a number": b'{"data": [{"id": "m", "max_model_len": NaN}]}',
    "digits": b'{"data": [{"id": "m", "max_model_len": "' + b"9" * 5000 + b'"}]}',
    "no text": b"\xff\xfe\x00",
    "larger than is read": b'{"data": "' + b"x" * 5000 + b'"}',
}
Handler = Callable[[web.Request], web.StreamResponse]


@asynccontextmanager
async def server(answer: Handler) -> AsyncIterator[OpenAiProbe]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as made:
        yield OpenAiProbe(address=f"127.0.0.1:{made.port}")


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
async def test_an_answer_without_a_model_is_an_error(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_body, "__defaults__", (4096,))
    async with server(lambda _: web.Response(body=body)) as probe:
        with pytest.raises(ActError, match="/v1/models names no model"):
            await probe.answers(["one"], deadline_s=10)
        assert await probe.busy() is None
        assert (await probe.health()).why == ""


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
async def test_an_unreadable_completion_is_a_failed_answer(body: bytes) -> None:
    def answer(request: web.Request) -> web.Response:
        return web.Response(body=GOOD if request.path == "/v1/models" else body)

    async with server(answer) as probe:
        (got,) = await probe.answers(["one"], deadline_s=10)

    assert got.finish_reason == "failed"


@pytest.mark.parametrize(
    "line", [b"data: " + b"[" * 50_000, b"data: {", b"x" * 500_000], ids=["nested", "begun", "long"]
)
@pytest.mark.parametrize("status", [200, 500])
async def test_an_invalid_stream_is_a_failed_request(line: bytes, status: int) -> None:
    def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.Response(body=GOOD)
        return web.Response(body=line + b"\n\n", status=status)

    async with server(answer) as probe:
        with pytest.raises(ActError, match="warm-up requests failed"):
            await probe.warm_up(2, deadline_s=30)


async def test_a_compressed_bomb_is_not_fully_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_body, "__defaults__", (4096,))
    packed = gzip.compress(b" " * 2**24)

    async with server(lambda _: web.Response(body=packed, headers={"Content-Encoding": "gzip"})) as probe:
        with pytest.raises(ActError, match="larger than 4096 bytes"):
            await probe.answers(["one"], deadline_s=10)


async def test_follows_no_redirects() -> None:
    paths: list[str] = []

    def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with server(answer) as probe:
        assert (await probe.health()).why == "/health answers 302"
        assert await probe.busy() is None
        with pytest.raises(ActError, match="names no model"):
            await probe.answers(["one"], deadline_s=10)

    assert "/elsewhere" not in paths


@asynccontextmanager
async def answering(answer: bytes | None, *, requested: bool = True) -> AsyncIterator[OpenAiProbe]:
    """A server of bytes; None: it reads requests and never answers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    made = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with made:
        yield OpenAiProbe(address=f"127.0.0.1:{made.sockets[0].getsockname()[1]}")
    if requested:
        await served.wait()


ANSWERS = {
    "well": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", 200),
    "no reason": (b"HTTP/1.1 200 \r\n\r\n", "", 200),
    "an old protocol": (b"HTTP/1.0 200\n\n", "", 200),
    "down": (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "/health answers 503", 503),
    "closed": (b"", "/health is not reachable: it closed the connection", None),
    "cut": (b"HTTP/1.1 20", "/health is not reachable: it answers b'HTTP/1.1 20', which is not HTTP", None),
    "no HTTP": (
        b"SSH-2.0-OpenSSH\r\n",
        "/health is not reachable: it answers b'SSH-2.0-OpenSSH\\r\\n', which is not HTTP",
        None,
    ),
}


@pytest.mark.parametrize(("answer", "why", "status"), ANSWERS.values(), ids=ANSWERS)
async def test_the_status_line_says_whether_it_is_healthy(
    answer: bytes, why: str, status: int | None
) -> None:
    async with answering(answer) as probe:
        health = await probe.health()

    assert (health.why, health.status, health.refused) == (why, status, False)


async def test_an_endless_line_is_no_answer() -> None:
    async with answering(b"x" * 500_000) as probe:
        assert (await probe.health()).why.startswith("/health is not reachable")


async def test_without_an_answer_in_time_it_is_not_healthy() -> None:
    async with answering(None) as probe:
        assert (await probe.health(0.05)).why == "/health does not answer within 0.05 s"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_port_without_a_listener_refuses(name: str) -> None:
    async with answering(b"", requested=False) as probe:
        port = probe.address.rpartition(":")[2]

    health = await OpenAiProbe(address=f"{name}:{port}").health()

    assert (health.refused, health.status) == (True, None)


async def test_a_name_is_probed_at_the_address_that_accepts() -> None:
    async with answering(ANSWERS["well"][0]) as probe:
        port = probe.address.rpartition(":")[2]
        assert (await OpenAiProbe(address=f"localhost:{port}").health()).status == 200


async def test_a_name_that_does_not_resolve_is_not_reachable_and_does_not_refuse() -> None:
    health = await OpenAiProbe(address="no-such-name.invalid:8000").health()

    assert health.why.startswith("/health is not reachable")
    assert not health.refused
