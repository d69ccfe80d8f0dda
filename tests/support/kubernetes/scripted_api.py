"""An API server that plays a script: each request gets the next line of it."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

from flettner.clients.kubernetes.client import SERVICE, KubernetesClient

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ScriptedApi:
    """Answers each request by the next line of its script; `client` asks it."""

    client: KubernetesClient
    script: deque[Answer] = field(default_factory=deque)
    asked: list[str] = field(default_factory=list)
    selected: set[str] = field(default_factory=set)  # label selectors of the requests

    async def answer(self, request: web.Request) -> web.StreamResponse:
        version = request.query.get("resourceVersion", "")
        verb = "watch" if "watch" in request.query else request.method.lower()
        self.asked.append(f"{verb} {version}".strip())
        self.selected.add(request.query.get("labelSelector", ""))
        return await self.script.popleft()(request)

    def listed(self, version: int, *documents: dict[str, Any]) -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": documents})

        self.script.append(answer)

    def refuses(self, status: int, headers: dict[str, str] | None = None) -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, headers=headers, text="no")

        self.script.append(answer)

    def watched(self, *events: tuple[str, dict[str, Any]], end: asyncio.Event | None = None) -> None:
        """Stays open until `end`, or for ever."""

        async def answer(request: web.Request) -> web.StreamResponse:
            stream = web.StreamResponse()
            await stream.prepare(request)
            for kind, document in events:
                await stream.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")
            await (end or asyncio.Event()).wait()
            return stream

        self.script.append(answer)

    async def names(self) -> set[str]:
        return {service["metadata"]["name"] for service in await self.client.cached.find(SERVICE)}

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(20):
            while not await holds():
                await asyncio.sleep(0.01)

    async def until_names(self, wanted: set[str]) -> None:
        async def holds() -> bool:
            return await self.names() == wanted

        await self.until(holds)

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator[Self]:
        path = folder / "kubeconfig"
        made = cls(KubernetesClient(kubeconfig=str(path), namespace="chat"))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", made.answer)
        listening = TestServer(app)
        await listening.start_server(shutdown_timeout=0.1)
        try:
            address = f"http://{listening.host}:{listening.port}"
            path.write_text(
                json.dumps(
                    {
                        "clusters": [{"name": "test", "cluster": {"server": address}}],
                        "users": [{"name": "me", "user": {"token": "t"}}],
                        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
                        "current-context": "test",
                    }
                )
            )
            yield made
        finally:
            await listening.close()
