"""The proxy between two real Unix sockets, and its client."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, UnixConnector
from yarl import URL

from flettner.tools.docker_proxy.main import listening
from flettner.tools.docker_proxy.policy import ProxyPolicy
from flettner.tools.docker_proxy.proxy import serving
from tests.unit.docker_proxy.fake_docker import FakeDocker, fake_docker
from tests.unit.docker_proxy.specimens import policy

VLLM = {"Image": "vllm/vllm-openai:v0.11.0", "Labels": {"flettner.target": "chat"}}


@dataclass(slots=True, kw_only=True)
class Rig:
    """`ask` returns (status, answer), or the error message as the answer."""

    engine: FakeDocker
    client: ClientSession
    socket: Path
    policy: ProxyPolicy

    async def ask(self, method: str, target: str, **request: Any) -> tuple[int, Any]:  # noqa: ANN401
        async with self.client.request(method, URL(f"http://x{target}", encoded=True), **request) as reply:
            if reply.content_type != "application/json":
                return reply.status, await reply.text()
            answer = await reply.json()
            return reply.status, answer["message"] if reply.status >= 400 else answer

    async def create(self, body: Any, name: str = "flettner-chat-r4") -> tuple[int, Any]:  # noqa: ANN401
        return await self.ask("POST", f"/v1.41/containers/create?name={name}", json=body)


@asynccontextmanager
async def rigged(**tables: dict[str, Any]) -> AsyncIterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:  # tmp_path is too long for a socket
        async with _between(Path(folder), tables) as rig:
            yield rig


@asynccontextmanager
async def _between(folder: Path, tables: dict[str, dict[str, Any]]) -> AsyncIterator[Rig]:
    engine_path, path = folder / "engine.sock", folder / "proxy.sock"
    rig_policy = policy(socket={"path": str(path), "engine": str(engine_path)}, **tables)
    async with (
        fake_docker(engine_path) as engine,
        ClientSession(connector=UnixConnector(path=str(path))) as client,
    ):
        rig = Rig(engine=engine, client=client, socket=path, policy=rig_policy)
        with listening(path, engine_path) as listener:
            async with serving(listener, lambda: rig.policy):
                yield rig
