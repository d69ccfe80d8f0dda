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
    collection = f"{group}/namespaces/{subject.namespace}/{plural}"
    return f"{collection}/{name}" if name else collection


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
        while not (result := await look()):
            await asyncio.sleep(0.05)
        return result


async def ready(subject: Subject, app: str, count: int) -> list[Json]:
    """Return the pods of a Deployment once this many are ready, and no others are left."""

    async def look() -> tuple[list[Json]] | None:
        documents = await pods(subject, app)
        return (documents,) if len(documents) == count and all(map(is_ready, documents)) else None

    [result] = await eventually(look)
    return list(result)


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


async def lines(subject: Subject, plural: str, **query: str) -> AsyncGenerator[Json, None]:
    asked = {"watch": "true", "timeoutSeconds": "30", **query}
    async with subject.http.stream("GET", path(subject, plural), params=asked, timeout=60) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            yield json.loads(line)


async def first(events: AsyncIterator[Json], count: int) -> list[tuple[str, str]]:
    """Return the type and the name of the first events."""
    changes = []
    async with asyncio.timeout(WITHIN_S):
        async for event in events:
            changes.append((event["type"], event["object"]["metadata"]["name"]))
            if len(changes) == count:
                return changes
    return changes
