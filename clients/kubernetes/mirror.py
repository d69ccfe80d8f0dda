"""The objects of one kind in a namespace, kept up to date by a list and a watch.

Reading it costs no call. While the watch is broken, and one attempt to begin another has failed, a read
raises what is wrong: a mirror gives no objects that it knows to be old. A connection that is cut without a
sign shows by its silence: the API server sends a bookmark about each minute.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

import httpx2
import lightkube
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type

from flettner.agent.domain.errors import ActError
from flettner.agent.retrying import Backoff, failure, retry
from flettner.clients.kubernetes.connection import Access, Connection, close_cancelled_handshakes
from flettner.clients.kubernetes.documents import Json, Kind, has_labels, with_kind
from flettner.clients.kubernetes.errors import AwayError, ExpiredError

_WATCH_S: Final = 300.0  # of one request; client-go asks for 300 to 600
_CONNECT_S: Final = 15.0
_FIRST_S: Final = 20.0  # for the first list, which goes on beyond it
_AGAIN_S: Final = 1.0  # from the end of a watch to the next watch; changes in between are seen late
_FIRST_PAUSE_S: Final = 1.0  # while the API server is away; doubled each time


class Pace(NamedTuple):
    """How soon a mirror notices what is wrong, and that it is over."""

    silence_s: float = 150.0  # a connection without a sign for so long is dead
    pause_s: float = 30.0  # the longest between two attempts while the API server is away


STEADY: Final = Pace()
PROMPT: Final = Pace(silence_s=60.0, pause_s=1.0)
"""For few readers, to which each second counts."""


@dataclass(slots=True, eq=False)
class Mirror:
    """The documents must not be changed."""

    connection: Connection
    kind: Kind
    labels: Mapping[str, str] = field(default_factory=dict)  # of the objects; empty: all
    pace: Pace = STEADY
    _objects: dict[str, Json] = field(default_factory=dict)
    _version: str = ""  # from where a watch goes on; empty: it begins with a list
    _listeners: list["_Listener"] = field(default_factory=list)  # in the order in which they began
    _error: ActError | None = None
    _settled: asyncio.Event = field(default_factory=asyncio.Event)  # there are objects, or an error
    _task: asyncio.Task[None] | None = None

    async def read(self) -> Mapping[str, Json]:
        """Return the objects by name. Raises ActError while they are not up to date."""
        self._start()
        try:
            async with asyncio.timeout(_FIRST_S):
                while not self._settled.is_set():
                    self._start()  # again after `refresh`
                    await self._settled.wait()
        except TimeoutError as error:
            raise AwayError(f"{self._what('list')}: no answer within {_FIRST_S:g} s") from error
        if self._error is not None:
            raise self._error
        return self._objects

    async def changes(self, labels: Mapping[str, str], name: str = "") -> AsyncIterator[None]:
        """Yield at each change of these objects, beginning at once; the caller reads them each time.

        It is a change, too, when they are no longer up to date, and when they are again.
        """
        listener = _Listener(labels, name)
        self._listeners.append(listener)
        try:
            while True:
                self._start()
                yield
                await listener.changed.wait()
                listener.changed.clear()
        finally:
            self._listeners.remove(listener)

    def refresh(self) -> None:
        """Let the next read list the objects: one of them was written through this connection."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._version = None, ""
        self._settled.set()  # who waits looks again
        self._settled.clear()
        self._wake_all()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _start(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()  # it ends by an error of its own only
        if self._task is None:
            name = f"Kubernetes {self.kind.__name__}s"
            self._task = asyncio.create_task(self._keep(), name=name)

    async def _keep(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, self.pace.pause_s)
        following = AsyncRetrying(
            retry=retry_if_exception_type(ActError),
            wait=lambda state: max(backoff(state), getattr(failure(state), "retry_s", 0.0)),
        )
        await retry(following, partial(self._follow, backoff))

    async def _follow(self, backoff: Backoff) -> None:
        """List and watch until that fails. Raises ActError, which the readers get, too."""
        try:
            while True:
                if not self._version:
                    await self._list()
                try:
                    await self._watch()
                except _BrokenError:
                    pass  # the next one goes on where it ended
                except ExpiredError:
                    self._version = ""
                backoff.reset()
                await asyncio.sleep(_AGAIN_S)
        except ActError as error:
            self._settle(error)
            raise

    async def _list(self) -> None:
        async def read(api: lightkube.AsyncClient) -> tuple[list[Json], str]:
            listed = api.list(self.kind, labels=dict(self.labels))
            return [with_kind(item, self.kind) async for item in listed], listed.resourceVersion

        documents, self._version = await self.connection.call(self._what("list"), read)
        self._objects = {document["metadata"]["name"]: self._trim(document) for document in documents}
        self._settle(None)
        self._wake_all()

    async def _watch(self) -> None:
        """Return at the request's end; raises _BrokenError if it is cut off, ActError if it cannot begin."""
        params = {
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": int(min(_WATCH_S, self.pace.silence_s * 2)),
            "labelSelector": ",".join(f"{name}={value}" for name, value in self.labels.items()) or None,
        }
        began = False
        try:
            async with self.connection.stream(self._what("watch")) as api:
                client = api._client  # noqa: SLF001 - lightkube's watch knows neither bookmarks nor silence
                request = client.prepare_request("list", self.kind, watch=True, params=params)
                limits = httpx2.Timeout(_CONNECT_S, read=self.pace.silence_s)
                async with client._client.stream(  # noqa: SLF001
                    "GET", request.url, params=request.params, timeout=limits
                ) as answer:
                    answer.raise_for_status()
                    began = True
                    self._settle(None)
                    async for line in answer.aiter_lines():
                        self._take(msgspec.json.decode(line))
        except AwayError as error:
            raise _BrokenError if began else error from error

    def _take(self, event: Json) -> None:
        """Follow one event of the watch. Raises ExpiredError where its history ends."""
        what, document = event["type"], event["object"]
        if what == "ERROR":
            why = f"{self._what('watch')}: {document.get('message', '')}"
            gone = document.get("code") == HTTPStatus.GONE
            raise ExpiredError(why, external=True) if gone else AwayError(why)
        metadata = document["metadata"]
        self._version = metadata["resourceVersion"]
        if what == "BOOKMARK":
            return
        name = metadata["name"]
        before = self._objects.pop(name, document)
        if what != "DELETED":
            self._objects[name] = self._trim(document)
        for listener in self._listeners:
            if listener.concerns(document) or listener.concerns(before):
                listener.changed.set()

    def _trim(self, document: Json) -> Json:
        """Remove what no reader needs: `managedFields` is half of a pod."""
        if self.kind.__name__ == "Pod":
            document["metadata"].pop("managedFields", None)
        return document

    def _settle(self, error: ActError | None) -> None:
        """The objects are up to date, unless there is an error."""
        changes = (self._error is None) is not (error is None)
        self._error = error
        self._settled.set()
        if changes:
            self._wake_all()

    def _wake_all(self) -> None:
        for listener in self._listeners:
            listener.changed.set()

    def _what(self, verb: str) -> str:
        return f"{verb} the {self.kind.__name__}s"


class _BrokenError(Exception):
    """A watch that had begun ended early; where it ended another one can begin."""


@dataclass(slots=True, eq=False)
class _Listener:
    labels: Mapping[str, str]
    name: str  # empty: any
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, document: Json) -> bool:
        metadata = document["metadata"]
        return self.name in {"", metadata["name"]} and has_labels(document, self.labels)


@dataclass(slots=True, eq=False)
class MirroringConnection(Connection):
    """One connection for all targets of a daemon, with what it knows of the objects there.

    Use `connection_to`. It belongs to an event loop and closes when the loop ends.
    """

    _mirrors: dict[tuple[Kind, frozenset[tuple[str, str]]], Mirror] = field(default_factory=dict)

    def mirror(self, kind: Kind, labels: Mapping[str, str], pace: Pace) -> Mirror:
        """Return what is known of the objects of a kind; it keeps itself up to date from now on."""
        key = kind, frozenset(labels.items())
        if key not in self._mirrors:
            self._mirrors[key] = Mirror(self, kind, labels, pace)
        return self._mirrors[key]

    def has_written(self, kind: Kind) -> None:
        """Let the next read of a mirror include a write that has just been made."""
        for mirror in self._mirrors.values():
            if mirror.kind is kind:
                mirror.refresh()

    async def close_with_loop(self) -> None:
        """asyncio.run cancels the tasks that are left when its own has ended."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.gather(*(mirror.close() for mirror in self._mirrors.values()))
            await self.close()


_connections: dict[
    tuple[asyncio.AbstractEventLoop, Access], tuple[MirroringConnection, asyncio.Task[None]]
] = {}
"""Shared by the engines, which the core makes one by one for each target."""


def connection_to(access: Access) -> MirroringConnection:
    """Return the connection of this event loop."""
    key = asyncio.get_running_loop(), access
    if key not in _connections:
        close_cancelled_handshakes()
        made = MirroringConnection(access)
        closing = asyncio.create_task(made.close_with_loop(), name="Kubernetes connection")
        closing.add_done_callback(lambda _: _connections.pop(key))
        _connections[key] = made, closing
    return _connections[key][0]
