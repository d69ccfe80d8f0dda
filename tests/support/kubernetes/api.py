"""The API as JSON documents; tests of the product's client use another library than the product."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
_RETRY_S = 0.2
_LONGEST_LINE = 1 << 22  # bytes of one object in a watch


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """`async with Api(url, token, ca) as api`; paths begin with /api or /apis."""

    def __init__(
        self, url: str, token: str, ca: Path, *, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._trust = ssl.create_default_context(cafile=str(ca))
        if certificate is not None:
            self._trust.load_cert_chain(*certificate)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self._url,
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=self._trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            read_bufsize=_LONGEST_LINE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON, or the text of a log
        """Raises ApiError for a status of 400 and above."""
        content = None if body is None else json.dumps(body)
        async with self.session.request(
            method, path, data=content, params=query, headers={"Content-Type": kind}
        ) as answer:
            text = await answer.text()
        if answer.status >= 400:
            raise ApiError(answer.status, text)
        return json.loads(text) if answer.content_type == "application/json" else text

    async def get(self, path: str, **query: str) -> Json:
        document: Json = await self.call("GET", path, query=query)
        return document

    async def create(self, path: str, body: Json) -> Json:
        made: Json = await self.call("POST", path, body)
        return made

    async def patch(self, path: str, body: Json) -> Json:
        """A merge patch."""
        changed: Json = await self.call("PATCH", path, body, kind=MERGE)
        return changed

    async def delete(self, path: str, body: Json | None = None) -> None:
        """`body`: DeleteOptions. An object that is gone is no error."""
        try:
            await self.call("DELETE", path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def states(self, path: str) -> AsyncIterator[dict[str, Json]]:
        """The objects of a collection by uid, after each change; survives restarts of the API server."""
        while True:
            with suppress(aiohttp.ClientError, ApiError, TimeoutError):
                listed = await self.get(path)
                objects = {item["metadata"]["uid"]: item for item in listed["items"]}
                yield objects
                version = listed["metadata"]["resourceVersion"]
                async with self.session.get(path, params={"watch": "1", "resourceVersion": version}) as lines:
                    async for line in lines.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        uid = event["object"]["metadata"]["uid"]
                        if event["type"] == "DELETED":
                            objects.pop(uid, None)
                        else:
                            objects[uid] = event["object"]
                        yield objects
            await asyncio.sleep(_RETRY_S)
