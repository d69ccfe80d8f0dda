"""A cluster under test, and the requests of the tests."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import httpx2

from tests.support.kubernetes.api import Json

_MERGE = {"Content-Type": "application/merge-patch+json"}
_JSON_PATCH = {"Content-Type": "application/json-patch+json"}
WITHIN_S = 30.0


class Subject(Protocol):
    """A cluster with one node of two GPUs, whose pods become ready."""

    http: httpx2.AsyncClient
    namespace: str

    async def evict(self, pod: str) -> None:
        """The node evicts the pod whose name begins so."""

    async def exit(self, pod: str) -> None:
        """The process of this pod exits by itself."""

    async def forget_history(self) -> None:
        """What happened so far cannot be watched any more."""


def path(subject: Subject, plural: str, name: str = "") -> str:
    group = "/apis/apps/v1" if plural == "deployments" else "/api/v1"
    found = f"{group}/namespaces/{subject.namespace}/{plural}"
    return f"{found}/{name}" if name else found


async def create(subject: Subject, plural: str, body: Json, **query: str) -> httpx2.Response:
    return await subject.http.post(path(subject, plural), json=body, params=query)


async def get(subject: Subject, plural: str, name: str) -> Json:
    answer = await subject.http.get(path(subject, plural, name))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def merge(subject: Subject, plural: str, name: str, change: Json) -> httpx2.Response:
    content = json.dumps(change)
    return await subject.http.patch(path(subject, plural, name), content=content, headers=_MERGE)


async def json_patch(subject: Subject, plural: str, name: str, *operations: Json) -> httpx2.Response:
    content = json.dumps(operations)
    return await subject.http.patch(path(subject, plural, name), content=content, headers=_JSON_PATCH)


async def pods(subject: Subject, app: str) -> list[Json]:
    answer = await subject.http.get(path(subject, "pods"), params={"labelSelector": f"app={app}"})
    return list(answer.json()["items"])


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what `look` returns
    async with asyncio.timeout(WITHIN_S):
        while not (found := await look()):
            await asyncio.sleep(0.05)
        return found


async def ready(subject: Subject, app: str, count: int) -> list[Json]:
    """Return the pods of a Deployment once this many are ready, and no others are left."""

    async def look() -> tuple[list[Json]] | None:
        found = await pods(subject, app)
        return (found,) if len(found) == count and all(map(is_ready, found)) else None

    [found] = await eventually(look)
    return list(found)


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def lines(subject: Subject, plural: str, **query: str) -> AsyncGenerator[Json, None]:
    asked = {"watch": "true", "timeoutSeconds": "30", **query}
    async with subject.http.stream("GET", path(subject, plural), params=asked, timeout=60) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            yield json.loads(line)


async def first(events: AsyncIterator[Json], count: int) -> list[tuple[str, str]]:
    """Return the type and the name of the first events."""
    found = []
    async with asyncio.timeout(WITHIN_S):
        async for one in events:
            found.append((one["type"], one["object"]["metadata"]["name"]))
            if len(found) == count:
                return found
    return found
