"""What a watch tells, and what a reader learns while it is broken; the API server here plays a script."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from flettner.agent.domain.errors import ActError
from flettner.agent.retrying import Backoff
from flettner.clients.kubernetes.client import SERVICE
from flettner.clients.kubernetes.errors import AwayError
from flettner.clients.kubernetes.mirror import PROMPT
from tests.support.kubernetes.scripted_api import ScriptedApi


def service(name: str, version: int, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    monkeypatch.setattr("flettner.clients.kubernetes.mirror._AGAIN_S", 0.01)
    monkeypatch.setattr("flettner.clients.kubernetes.mirror.Backoff", lambda *_: Backoff(0.01, 0.01))
    async with ScriptedApi.running(tmp_path) as api:
        yield api


async def test_events_change_what_is_known_without_a_call(server: ScriptedApi) -> None:
    server.listed(5, service("a", 3), service("b", 4))
    server.watched(("ADDED", service("c", 6)), ("DELETED", service("a", 7)), ("MODIFIED", service("b", 8)))

    await server.until_names({"b", "c"})

    assert server.asked == ["get", "watch 5"]


async def test_a_watch_goes_on_at_the_last_bookmark(server: ScriptedApi) -> None:
    over = asyncio.Event()
    over.set()
    server.listed(5, service("a", 3))
    server.watched(("BOOKMARK", service("", 70)), end=over)
    server.watched(("ADDED", service("b", 71)))

    await server.until_names({"a", "b"})

    assert server.asked == ["get", "watch 5", "watch 70"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_history_that_is_gone_is_listed_again(server: ScriptedApi, *, at_once: bool) -> None:
    server.listed(5, service("a", 3))
    if at_once:
        server.refuses(410)
    else:
        server.watched(("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"}))
    server.listed(90, service("z", 80))
    server.watched()

    await server.until_names({"z"})

    async def is_listed_again() -> bool:
        return server.asked == ["get", "watch 5", "get", "watch 90"]

    await server.until(is_listed_again)


async def test_nothing_is_told_while_no_watch_can_begin(server: ScriptedApi) -> None:
    over = asyncio.Event()
    server.listed(5, service("a", 3))
    server.watched(end=over)
    for _ in range(20):
        server.refuses(503)
    server.watched(("DELETED", service("a", 6)))
    assert await server.names() == {"a"}

    async def refused() -> bool:
        try:
            await server.names()
        except AwayError as error:
            return "503" in error.why
        return False

    over.set()
    await server.until(refused)

    async def answers() -> bool:
        return not await refused() and await server.names() == set()

    await server.until(answers)


async def test_an_overloaded_server_is_asked_after_the_time_that_it_names(server: ScriptedApi) -> None:
    server.refuses(429, {"Retry-After": "1"})
    server.listed(5)
    server.watched()
    clock = asyncio.get_running_loop().time
    began = clock()

    with pytest.raises(AwayError) as refused:
        await server.names()

    async def again() -> bool:
        return len(server.asked) > 1

    await server.until(again)
    assert refused.value.retry_s == 1
    assert clock() - began > 0.9


async def test_a_missing_right_is_named(server: ScriptedApi) -> None:
    for _ in range(1000):
        server.refuses(403)

    with pytest.raises(ActError, match="list the Services: the API server forbids it"):
        await server.names()


async def test_a_read_after_a_write_includes_it(server: ScriptedApi) -> None:
    server.listed(5, service("a", 3))
    server.watched()
    assert await server.names() == {"a"}

    async def created(_: web.Request) -> web.Response:
        return web.json_response(service("b", 6))

    server.script.append(created)
    server.listed(6, service("a", 3), service("b", 6))
    server.watched()
    await server.client.create(SERVICE, service("b", 0))

    assert await server.names() == {"a", "b"}


async def test_a_listener_hears_of_its_own_objects_only(server: ScriptedApi) -> None:
    server.listed(5, service("a", 3, app="x"), service("b", 4, app="y"))
    server.watched(("MODIFIED", service("b", 6, app="y")), ("MODIFIED", service("a", 7)))
    heard: Counter[str] = Counter()

    async def listen(app: str) -> None:
        async for _ in server.client.cached.changes(SERVICE, {"app": app}):
            heard[app] += 1

    await server.names()
    tasks = [asyncio.create_task(listen(app)) for app in ("x", "none")]

    async def heard_twice() -> bool:
        return heard["x"] == 2

    await server.until(heard_twice)  # at the beginning, and when `a` lost its label
    for task in tasks:
        task.cancel()
    assert heard["none"] == 1


async def test_a_mirror_of_labelled_objects_asks_for_no_others(server: ScriptedApi) -> None:
    over = asyncio.Event()
    over.set()
    server.listed(5, service("a", 3, app="x"))
    server.watched(("ADDED", service("b", 6, app="x")), end=over)
    server.watched()
    mirror = server.client.mirror(SERVICE, {"app": "x"}, PROMPT)

    async def has_both() -> bool:
        return (await mirror.read()).keys() == {"a", "b"}

    await server.until(has_both)

    assert server.selected == {"app=x"}


async def test_a_listener_hears_of_an_outage_and_of_its_end(server: ScriptedApi) -> None:
    over = asyncio.Event()
    server.listed(5, service("a", 3))
    server.watched(end=over)
    server.refuses(503)
    server.refuses(503)
    server.watched()
    heard: list[bool] = []

    async def listen() -> None:
        async for _ in server.client.cached.changes(SERVICE):
            try:
                heard.append(await server.names() == {"a"})
            except AwayError:
                heard.append(False)

    listening = asyncio.create_task(listen())

    async def heard_first() -> bool:
        return bool(heard)

    async def heard_end() -> bool:
        return False in heard and heard[-1]

    await server.until(heard_first)
    over.set()
    await server.until(heard_end)
    listening.cancel()
