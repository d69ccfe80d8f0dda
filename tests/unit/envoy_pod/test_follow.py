"""What the program of an Envoy pod follows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flettner.actuators.envoy.pod.follow import RouteFollower
from flettner.actuators.shared.published_route import PROXY, PublishedRoute
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Server
from flettner.agent.retrying import Backoff
from tests.support.kubernetes.scripted_api import ScriptedApi

CHAT = PublishedRoute(
    target="chat",
    epoch=1,
    process="p",
    listen="0.0.0.0:8080",
    session_header="x",
    report_every_s=2.0,
    route=Route(
        number=1,
        servers=(Server(name="vllm", setting={}, address="vllm.svc:8000"),),
        weights={"vllm": 100},
        fallback="vllm",
    ),
)


def published(version: int) -> dict[str, Any]:
    document = CHAT.renewed().to_object("proxy")
    document["metadata"]["resourceVersion"] = str(version)
    return document


def unreadable(version: int) -> dict[str, Any]:
    metadata = {"name": "proxy-other", "resourceVersion": str(version), "labels": {PROXY: "proxy"}}
    return {"metadata": metadata, "data": {}}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    monkeypatch.setattr("flettner.clients.kubernetes.mirror._AGAIN_S", 0.01)
    monkeypatch.setattr("flettner.clients.kubernetes.mirror.Backoff", lambda *_: Backoff(0.01, 0.01))
    async with ScriptedApi.running(tmp_path) as api:
        yield api


async def test_routes_are_followed_through_an_outage_to_their_removal(server: ScriptedApi) -> None:
    renewed, over = asyncio.Event(), asyncio.Event()
    server.refuses(403)
    server.listed(5, published(3), unreadable(4))
    server.watched(("MODIFIED", published(6)), end=renewed)
    server.refuses(503)
    server.watched(("DELETED", published(7)), ("DELETED", unreadable(8)), end=over)
    routes: list[PublishedRoute] = []
    removed: list[str] = []
    follower = RouteFollower(
        client=server.client, deployment="proxy", on_route=routes.append, on_removed=removed.append
    )
    following = asyncio.create_task(follower.run())

    async def has_both() -> bool:
        return len({route.write for route in routes}) == 2 and follower.complete

    async def is_empty() -> bool:
        return removed == ["chat"] and not follower.unreadable

    await server.until(has_both)
    assert list(follower.unreadable) == ["proxy-other"]
    renewed.set()
    await server.until(is_empty)

    following.cancel()
    assert server.selected == {f"{PROXY}=proxy"}
