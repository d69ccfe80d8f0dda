"""A receiver of notices: a real HTTP server with configurable faults."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Receiver:
    """`plan`: what to do with the next posts, then 200. A number is a status; "hang" never answers."""

    plan: list[int | str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)  # of the answers that are planned
    seen: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    visited: list[str] = field(default_factory=list)  # paths
    url: str = ""

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.seen]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.visited.append(request.path)
        body = await request.read()
        act = self.plan.pop(0) if self.plan else 200
        if act == "hang":
            await asyncio.sleep(3600)
        if act == "endless":
            return await self._endless(request)
        if act != 200:
            return web.Response(status=int(act), headers=self.headers, text="routing_key=PLANTED " * 1000)
        self.seen.append((dict(request.headers), body))
        return web.Response(text="ok")

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(({}, b"{}"))
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)
            await asyncio.sleep(0)


@asynccontextmanager
async def receiving(*plan: int | str, **headers: str) -> AsyncIterator[Receiver]:
    receiver = Receiver(plan=list(plan), headers={name.replace("_", "-"): v for name, v in headers.items()})
    app = web.Application()
    app.router.add_post("/{path:.*}", receiver.answer)
    server = TestServer(app, skip_url_asserts=True)
    await server.start_server(shutdown_timeout=0.01)
    receiver.url = str(server.make_url("/hook/PLANTED"))
    try:
        yield receiver
    finally:
        await server.close()
