"""Watches: the changes of a collection since a version, as lines of JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.selectors import Matches
from tests.support.kubernetes.memory.server import KINDS, ApiServer, Request, Where, selected, status
from tests.support.kubernetes.memory.store import Change

BOOKMARK_S = 60.0
_TIMEOUT_S = 1800.0  # of a watch without `timeoutSeconds`

Later = Callable[[float, Callable[[], object]], object]


@dataclass(eq=False, slots=True, kw_only=True)
class Watch:
    """`lines` ends after the timeout, or when `cut` is called. `stalled`: nothing is sent for now."""

    server: ApiServer
    request: Request
    later: Later
    stalled: Callable[[], bool] = lambda: False
    _queue: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)
    _matches: Matches = field(init=False)
    _where: Where = field(init=False)
    _sent: int = field(default=0, init=False)  # the version of the last line

    def __post_init__(self) -> None:
        self._where, self._matches = Where.parse(self.request.path), selected(self.request.query)

    async def lines(self) -> AsyncIterator[bytes]:
        if not self._begin():
            yield _line(
                "ERROR", status(410, f"too old resource version (the oldest is {self.server.store.oldest})")
            )
            return
        self.server.store.listeners.append(self._heard)
        asked = self.request.query
        self.later(float(asked.get("timeoutSeconds", _TIMEOUT_S)), self.cut)
        if asked.get("allowWatchBookmarks") == "true":
            self.later(BOOKMARK_S, self._bookmark)
        try:
            while (line := await self._queue.get()) is not None:
                yield line
        finally:
            self.close()

    def cut(self) -> None:
        self._queue.put_nowait(None)

    def catch_up(self) -> None:
        """Send what happened while it was stalled."""
        for change in self.server.store.since(self._sent):
            self._heard(change)

    def _begin(self) -> bool:
        """Send what is there, or what happened since the given version; False: that is too old."""
        store, asked = self.server.store, self.request.query.get("resourceVersion", "")
        if asked in {"", "0"}:
            for document in store.select(self._where.plural, self._where.namespace):
                if self._matches(document):
                    self._queue.put_nowait(_line("ADDED", document))
            self._sent = store.version
            return True
        self._sent = int(asked)
        if int(asked) < store.oldest:
            return False
        self.catch_up()
        return True

    def _heard(self, change: Change) -> None:
        plural, namespace, _ = change.key
        if plural != self._where.plural or self._where.namespace not in {"", namespace} or self.stalled():
            return
        if change.version <= self._sent:
            return
        self._sent = change.version
        now, before = self._matches(change.document), bool(change.before) and self._matches(change.before)
        if change.type == "DELETED":
            now = False
        if now or before:  # one that no longer matches is deleted, for this watch
            kind = ("MODIFIED" if before else "ADDED") if now else "DELETED"
            self._queue.put_nowait(_line(kind, change.document))

    def _bookmark(self) -> None:
        if self._heard not in self.server.store.listeners:
            return
        if not self.stalled():
            version, kind = KINDS[self._where.plural]
            self._sent = self.server.store.version
            metadata = {"resourceVersion": str(self._sent)}
            self._queue.put_nowait(
                _line("BOOKMARK", {"kind": kind, "apiVersion": version, "metadata": metadata})
            )
        self.later(BOOKMARK_S, self._bookmark)

    def close(self) -> None:
        if self._heard in self.server.store.listeners:
            self.server.store.listeners.remove(self._heard)


def _line(kind: str, document: Json) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"
