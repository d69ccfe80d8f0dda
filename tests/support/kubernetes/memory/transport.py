"""HTTP requests of httpx to the API server in memory; a network in between may fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.support.kubernetes.memory.server import ApiServer, RefusedError, Request
from tests.support.kubernetes.memory.watches import Later, Watch

Deliver = Callable[[Request, Callable[[], httpx2.Response]], Awaitable[httpx2.Response]]
"""Let a request reach the server, which `answer` performs, and return the response."""


async def at_once(request: Request, answer: Callable[[], httpx2.Response]) -> httpx2.Response:
    del request
    await asyncio.sleep(0)
    return answer()


@dataclass(eq=False)
class MemoryTransport(httpx2.AsyncBaseTransport):
    """`client`: who sends a request, for a test that tells clients apart. `watches`: those that are open."""

    server: ApiServer
    later: Later
    deliver: Deliver = at_once
    stalled: Callable[[], bool] = lambda: False
    client: Callable[[], str] = lambda: ""
    watches: list[Watch] = field(default_factory=list)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = Request(
            method=request.method,
            path=request.url.path,
            query=dict(request.url.params),
            content=await request.aread(),
            kind=request.headers.get("Content-Type", ""),
            by=request.url.params.get("fieldManager") or request.headers.get("User-Agent", ""),
            client=self.client(),
        )
        return await self.deliver(asked, lambda: self._answer(asked))

    def _answer(self, asked: Request) -> httpx2.Response:
        if asked.query.get("watch") in {"true", "1"}:
            watch = Watch(server=self.server, request=asked, later=self.later, stalled=self.stalled)
            self.watches.append(watch)
            return httpx2.Response(200, stream=_Lines(watch, self.watches), headers=_JSON)
        try:
            result = self.server.handle(asked)
        except RefusedError as error:
            return refusal(error)
        if isinstance(result, str):
            return httpx2.Response(200, text=result)
        created = asked.method == "POST"
        return httpx2.Response(201 if created else 200, content=json.dumps(result).encode(), headers=_JSON)


_JSON = {"Content-Type": "application/json"}


def refusal(error: RefusedError, **headers: str) -> httpx2.Response:
    content = json.dumps(error.body).encode()
    return httpx2.Response(error.code, content=content, headers={**_JSON, **headers})


class _Lines(httpx2.AsyncByteStream):
    def __init__(self, watch: Watch, open_: list[Watch]) -> None:
        self._watch, self._open = watch, open_

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._watch.lines():
            yield line

    async def aclose(self) -> None:
        if self._watch in self._open:
            self._open.remove(self._watch)
        self._watch.close()


def client(server: ApiServer, later: Later, **options: Any) -> httpx2.AsyncClient:  # noqa: ANN401
    """A client of this server."""
    transport = MemoryTransport(server=server, later=later, **options)
    return httpx2.AsyncClient(transport=transport, base_url="http://memory")
