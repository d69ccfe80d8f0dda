"""An invalid response of a server fails only that server."""

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actuators.vllm.probe import OpenAiProbe
from agent.domain.errors import ActError
from agent.io.bounded import read_body

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
    asked: list[str] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with server(answer) as probe:
        assert (await probe.health()).why == "/health answers 302"
        assert await probe.busy() is None
        with pytest.raises(ActError, match="names no model"):
            await probe.answers(["one"], deadline_s=10)

    assert "/elsewhere" not in asked
