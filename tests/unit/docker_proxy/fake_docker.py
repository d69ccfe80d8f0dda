"""A fake Docker Engine on a Unix socket: keeps containers, records requests, streams events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

ADOPTED, OURS, FOREIGN, HEXNAMED = "a" * 64, "b" * 64, "c" * 64, "d" * 64
IMAGE, EVIL = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def _container(full: str, name: str, labels: dict[str, str], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "Id": full,
        "Name": f"/{name}",
        "Image": IMAGE,
        "Config": {"Labels": labels or None, "Env": ["HF_TOKEN=secret"]},
        "Mounts": [{"Type": "volume", "Name": f"cache-of-{name}"}],
        **more,
    }


def _containers() -> list[dict[str, Any]]:
    return [
        _container(ADOPTED, "vllm", {}),
        _container(OURS, "flettner-chat-r3", {"flettner.target": "chat"}),
        _container(FOREIGN, "postgres", {"com.example": "db"}),
        # Its name is a prefix of another container's id.
        _container(HEXNAMED, "aaaaaaaaaaaa", {}),
    ]


@dataclass(slots=True)
class FakeDocker:
    """`asked` holds (method, path, query, body) of every request; `events` is streamed to clients."""

    containers: list[dict[str, Any]] = field(default_factory=_containers)
    images: dict[str, list[str]] = field(
        default_factory=lambda: {IMAGE: ["vllm/vllm-openai:v0.11.0"], EVIL: ["evil/vllm-openai:v0.11.0"]}
    )
    networks: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {
            "bridge": ("e" * 64, "bridge"),
            "llm": ("f" * 64, "bridge"),
            "host": ("0" * 64, "host"),
            "none": ("9" * 64, "null"),
            "db": ("8" * 64, "bridge"),
        }
    )
    volumes: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "vllm-root": {"Driver": "local", "Options": {"o": "bind", "device": "/"}},
            "vllm-plain": {"Driver": "local", "Options": None},
        }
    )
    received: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    events: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    listeners: int = 0
    says: bytes | None = None  # answer to every GET

    @property
    def changes(self) -> list[tuple[str, str, dict[str, str], bytes]]:
        return [received for received in self.received if received[0] != "GET"]

    def find(self, ref: str) -> dict[str, Any] | None:
        """Resolve in the order of dockerd: full id, name, prefix of an id."""
        ranks = [
            (it["Id"] == ref, it["Name"] == f"/{ref}", it["Id"].startswith(ref)) for it in self.containers
        ]
        best = max(ranks)
        return self.containers[ranks.index(best)] if any(best) else None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix("/v1.41")
        self.received.append((request.method, path, dict(request.query), await request.read()))
        if self.says is not None and request.method == "GET":
            return web.Response(body=self.says, content_type="application/json")
        match (request.method, path[1:].split("/")):
            case "GET", ["containers", ref, "json"]:
                return _answer_with(self.find(ref), ref)
            case "GET", ["containers", "json"]:
                return web.json_response([self._entry(container) for container in self.containers])
            case "GET", ["images", *ref, "json"]:
                return self._image("/".join(ref))
            case "GET", ["networks", ref]:
                return self._network(ref)
            case "GET", ["volumes", name]:
                return _answer_with(self.volumes.get(name), name)
            case "GET", ["events"] | ["containers", _, "logs"]:
                return await self._stream(request)
            case "POST", ["containers", "create"]:
                return web.json_response({"Id": "7" * 64, "Warnings": []}, status=201)
            case "GET" | "HEAD", _:
                return web.Response(text="OK", headers={"Api-Version": "1.41"})
            case _:
                return web.Response(status=304 if path.endswith("/start") else 204)

    @staticmethod
    def _entry(container: dict[str, Any]) -> dict[str, Any]:
        labels = container["Config"]["Labels"]
        return {"Id": container["Id"], "Names": [container["Name"], "/x/vllm"], "Labels": labels}

    def _image(self, ref: str) -> web.Response:
        for image, tags in self.images.items():
            if ref == image or ref in tags or image.removeprefix("sha256:").startswith(ref):
                return web.json_response({"Id": image, "RepoTags": tags, "RepoDigests": None})
        return _answer_with(None, ref)

    def _network(self, ref: str) -> web.Response:
        for name, (full, driver) in self.networks.items():
            if ref == name or full.startswith(ref):
                return web.json_response({"Id": full, "Name": name, "Driver": driver})
        return _answer_with(None, ref)

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """Stream until `events` yields None; b"" aborts the connection."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.listeners += 1
        try:
            while (chunk := await self.events.get()) is not None:
                if not chunk:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await response.write(chunk)
            return response
        finally:
            self.listeners -= 1


def _answer_with(what: dict[str, Any] | None, ref: str) -> web.Response:
    if what is None:
        return web.json_response({"message": f"No such object: {ref}"}, status=404)
    return web.json_response(what)


@asynccontextmanager
async def fake_docker(path: Path) -> AsyncIterator[FakeDocker]:
    fake = FakeDocker()
    runner = web.ServerRunner(web.Server(fake.handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        yield fake
    finally:
        await runner.cleanup()


def as_json(body: bytes) -> dict[str, Any]:
    value = json.loads(body)
    assert isinstance(value, dict)
    return value
