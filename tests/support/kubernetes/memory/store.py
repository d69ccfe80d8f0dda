"""The objects of a cluster with their versions, and the history that watches read."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from tests.support.kubernetes.api import Json

Key = tuple[str, str, str]
"""Plural, namespace and name: ("deployments", "chat", "vllm")."""


@dataclass(frozen=True, slots=True)
class Change:
    """`type`: ADDED, MODIFIED or DELETED. `before`: empty for one that was added."""

    type: str
    key: Key
    document: Json
    version: int
    before: Json = field(default_factory=dict)
    by: str = ""  # the client that wrote


@dataclass(slots=True)
class Store:
    """A document is never changed in place: each write puts a new one there."""

    objects: dict[Key, Json] = field(default_factory=dict)
    version: int = 1
    history: list[Change] = field(default_factory=list)
    oldest: int = 1  # a watch from an older version ends with 410
    listeners: list[Callable[[Change], None]] = field(default_factory=list)

    def get(self, plural: str, namespace: str, name: str) -> Json | None:
        return self.objects.get((plural, namespace, name))

    def select(self, plural: str, namespace: str = "") -> list[Json]:
        """Return the objects of a kind in the order of their names; of all namespaces without one."""
        keys = [key for key in self.objects if key[0] == plural and namespace in {"", key[1]}]
        return [self.objects[key] for key in sorted(keys)]

    def put(self, key: Key, document: Json, by: str = "") -> Json:
        """Create or replace an object. One that does not change keeps its version."""
        before = self.objects.get(key, {})
        stored = deepcopy(document)
        stored["metadata"]["resourceVersion"] = before.get("metadata", {}).get("resourceVersion", "")
        if before == stored:
            return before
        self.version += 1
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = stored
        self._record(Change("MODIFIED" if before else "ADDED", key, stored, self.version, before, by))
        return stored

    def remove(self, key: Key, by: str = "") -> None:
        before = self.objects.pop(key, None)
        if before is None:
            return
        self.version += 1
        last = deepcopy(before)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._record(Change("DELETED", key, last, self.version, before, by))

    def since(self, version: int) -> list[Change]:
        return [change for change in self.history if change.version > version]

    def forget_history(self) -> None:
        """Compact, as etcd does: watches and lists continue from the present only."""
        self.history.clear()
        self.oldest = self.version

    def _record(self, change: Change) -> None:
        self.history.append(change)
        for listener in [*self.listeners]:
            listener(change)
