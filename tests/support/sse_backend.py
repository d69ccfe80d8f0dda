"""A small OpenAI-like server that fails on demand, and a client that records its responses."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

import aiohttp
from aiohttp import web

from flettner.agent.domain.model import Server
from tests.support.ports import free_port

Mode = Literal[
    "ok", "503", "500", "404", "400", "reset", "cut", "unfinished", "error", "abort", "hang", "crumbs"
]


@dataclass
class Backend:
    """Answers `chunks` events, `gap_s` apart. `served` counts what arrived, by mode."""

    name: str
    mode: Mode = "ok"
    chunks: int = 4
    gap_s: float = 0.005
    port: int = 0
    host: str = "127.0.0.1"  # that it listens at; clients are told 127.0.0.1
    served: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self.port = self.port or free_port()
        await web.TCPSite(self._runner, self.host, self.port).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner:
            await self._runner.cleanup()

    @property
    def server(self) -> Server:
        return Server(name=self.name, setting={}, address=f"127.0.0.1:{self.port}")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        mode = request.headers.get("x-mode", self.mode)
        self.served[mode] += 1
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        body = await request.json() if request.can_read_body else {}
        if mode in ("503", "500", "400"):
            return web.json_response({"error": "as told"}, status=int(mode))
        if mode == "404":
            error = {"message": f"The model `{body['model']}` does not exist.", "type": "NotFoundError"}
            return web.json_response({"error": error}, status=404)
        if mode == "reset" and request.transport:
            request.transport.abort()
            return web.Response()
        if not body.get("stream"):
            if mode == "hang":
                await asyncio.sleep(3600)
            reason = "abort" if mode == "abort" else "stop"
            return web.json_response(
                {"choices": [{"text": "", "finish_reason": reason}]}, headers=self._named
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **self._named})
        await response.prepare(request)
        with suppress(ConnectionError):
            await self._stream(mode, request, response)
        return response

    @property
    def _named(self) -> dict[str, str]:
        return {"x-server": self.name}

    async def _stream(self, mode: str, request: web.Request, response: web.StreamResponse) -> None:
        if mode == "hang":
            await asyncio.sleep(3600)
        if mode == "crumbs":
            await self._crumble(response)
            return
        for _ in range(self.chunks):
            await response.write(b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n')
            await asyncio.sleep(self.gap_s)
        if mode == "cut" and request.transport:
            request.transport.abort()
            return
        if mode == "error":
            await response.write(b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n')
        if mode == "abort":
            await response.write(b'data: {"choices": [{"text": "", "finish_reason":"abort"}]}\n\n')
        if mode != "unfinished":
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()

    async def _crumble(self, response: web.StreamResponse) -> None:
        """Byte by byte, with text that resembles the end of a stream."""
        text = '\ndata: [DONE] data: {"error": 1} "finish_reason":"abort"'
        event = f"data: {json.dumps({'text': text, 'finish_reason': None})}\n\n"
        for byte in (event * self.chunks + "data: [DONE]\n\n").encode():
            await response.write(bytes([byte]))
            await asyncio.sleep(0)
        await response.write_eof()


@dataclass(frozen=True)
class Answer:
    status: int  # 0: none
    server: str = ""
    whole: bool = False  # the body came to its end, a stream with [DONE]
    events: int = 0

    @property
    def good(self) -> bool:
        return self.status == 200 and self.whole


async def ask(
    client: aiohttp.ClientSession,
    listen: str,
    *,
    stream: bool = True,
    headers: dict[str, str] | None = None,
    path: str = "/v1/completions",
) -> Answer:
    try:
        async with client.post(
            f"http://{listen}{path}", json={"prompt": "a", "stream": stream}, headers=headers
        ) as response:
            name = response.headers.get("x-server", "")
            try:
                body = await response.read()
            except aiohttp.ClientError:
                return Answer(response.status, name)
            events = body.count(b"\n\n") - 1
            return Answer(response.status, name, not stream or body.endswith(b"data: [DONE]\n\n"), events)
    except aiohttp.ClientError:
        return Answer(0)


async def count_answers(
    client: aiohttp.ClientSession, listen: str, times: int, *, stream: bool = False
) -> Counter[str]:
    """The server that answered; a failed request counts under its status."""
    answers = await asyncio.gather(*(ask(client, listen, stream=stream) for _ in range(times)))
    return Counter(answer.server if answer.good else str(answer.status) for answer in answers)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait without a limit: the test's timeout applies."""
    while True:
        if await true():
            return
        await asyncio.sleep(0.02)
