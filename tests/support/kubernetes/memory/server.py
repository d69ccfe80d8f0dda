"""The API server: requests to answers, over the store."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory import patches
from tests.support.kubernetes.memory.defaults import InvalidError, with_defaults
from tests.support.kubernetes.memory.selectors import Matches, by_fields, by_labels
from tests.support.kubernetes.memory.store import Key, Store

KINDS = {
    "deployments": ("apps/v1", "Deployment"),
    "pods": ("v1", "Pod"),
    "services": ("v1", "Service"),
    "configmaps": ("v1", "ConfigMap"),
    "events": ("v1", "Event"),
    "nodes": ("v1", "Node"),
    "horizontalpodautoscalers": ("autoscaling/v1", "HorizontalPodAutoscaler"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "httproutes": ("gateway.networking.k8s.io/v1", "HTTPRoute"),
}
_REASONS = {
    400: "BadRequest",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_IMMUTABLE = {"deployments": ("selector",)}
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # of generated names

Log = Callable[[str, str, str, bool], str]
"""By namespace, pod, container and whether of its previous run. Raises LookupError."""


class RefusedError(Exception):
    """An answer of 400 and above."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.body = code, status(code, message, reason)


def status(code: int, message: str, reason: str = "") -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS[code],
        "code": code,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`by`: the field manager, or the user agent. `client`: for a test that tells clients apart."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    kind: str = ""  # of the content
    by: str = ""
    client: str = ""

    @property
    def writer(self) -> str:
        return self.client or self.by

    @property
    def body(self) -> Any:  # noqa: ANN401 - any JSON
        return json.loads(self.content) if self.content else {}


@dataclass(frozen=True, slots=True)
class Where:
    """The object or the collection that a path names."""

    plural: str
    namespace: str = ""
    name: str = ""
    part: str = ""  # a subresource

    @property
    def key(self) -> Key:
        return self.plural, self.namespace, self.name

    @classmethod
    def parse(cls, path: str) -> "Where":
        """Raises RefusedError."""
        parts = [part for part in path.split("/") if part]
        rest = parts[2:] if parts[:1] == ["api"] else parts[3:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if not rest or rest[0] not in KINDS:
            raise RefusedError(404, "the server could not find the requested resource")
        plural, name, part = (*rest, "", "")[:3]
        return cls(plural, namespace, name, part)


@dataclass(slots=True, kw_only=True)
class ApiServer:
    now: Callable[[], datetime]
    random: Random
    store: Store = field(default_factory=Store)
    log: Log = lambda namespace, pod, container, previous: ""  # noqa: ARG005
    counts: dict[str, int] = field(default_factory=dict)  # answered requests by method

    def handle(self, request: Request) -> Json | str:
        """Answer any request but a watch. Raises RefusedError."""
        where = Where.parse(request.path)
        self.counts[request.method] = self.counts.get(request.method, 0) + 1
        match request.method:
            case "GET" if where.part == "log":
                return self._log(where, request)
            case "GET" if where.name:
                return self._get(where)
            case "GET":
                return self._list(where, request)
            case "POST" if where.part == "binding":
                return self._bind(where, request)
            case "POST":
                return self._create(where, request)
            case "PUT" | "PATCH":
                return self._change(where, request)
            case "DELETE":
                return self._delete(where, request)
            case _:
                raise RefusedError(405, "the server does not allow this method", "MethodNotAllowed")

    def _log(self, where: Where, request: Request) -> str:
        self._get(where)
        asked = request.query
        try:
            text = self.log(
                where.namespace, where.name, asked.get("container", ""), asked.get("previous") == "true"
            )
        except LookupError as error:
            raise RefusedError(400, str(error.args[0])) from error
        lines = text.splitlines(keepends=True)
        return "".join(lines[-int(asked.get("tailLines", len(lines))) :])

    def _get(self, where: Where) -> Json:
        document = self.store.get(*where.key)
        if document is None:
            group = _group(where.plural)
            named = f"{where.plural}.{group}" if group else where.plural
            raise RefusedError(404, f'{named} "{where.name}" not found')
        return document

    def _list(self, where: Where, request: Request) -> Json:
        version, kind = KINDS[where.plural]
        matches = selected(request.query)
        return {
            "kind": f"{kind}List",
            "apiVersion": version,
            "metadata": {"resourceVersion": str(self.store.version)},
            "items": [
                document for document in self.store.select(where.plural, where.namespace) if matches(document)
            ],
        }

    def _create(self, where: Where, request: Request) -> Json:
        document = self._read(where.plural, request)
        metadata = document.setdefault("metadata", {})
        name = metadata.get("name") or metadata.get("generateName", "") + self._suffix()
        metadata["name"] = name
        if self.store.get(where.plural, where.namespace, name) is not None:
            message = f'{where.plural}.{_group(where.plural)} "{name}" already exists'
            raise RefusedError(409, message, "AlreadyExists")
        metadata.pop("resourceVersion", None)
        metadata |= {
            "uid": self._uid(),
            "creationTimestamp": self._time(),
            "managedFields": _managed((), request.by, self._time()),
        }
        if where.namespace:
            metadata["namespace"] = where.namespace
        if where.plural in {"deployments", "httproutes"}:
            metadata["generation"] = 1
        version, kind = KINDS[where.plural]
        document = {"kind": kind, "apiVersion": version, **_valid(where.plural, document)}
        if where.plural in {"deployments", "pods", "services"}:
            document["status"] = {"phase": "Pending"} if where.plural == "pods" else {}
        if request.query.get("dryRun"):
            return document
        return self.store.put((where.plural, where.namespace, name), document, request.writer)

    def _change(self, where: Where, request: Request) -> Json:
        """PUT and PATCH, of the object or of its status alone."""
        before = self._get(where)
        wanted = self._patched(before, request)
        metadata, previous = wanted["metadata"], before["metadata"]
        if metadata.get("uid", previous["uid"]) != previous["uid"]:
            raise RefusedError(409, f"Precondition failed: UID in precondition: {metadata['uid']}")
        if metadata.get("resourceVersion") not in {None, "", previous["resourceVersion"]}:
            raise RefusedError(
                409,
                f'Operation cannot be fulfilled on {where.plural}.{_group(where.plural)} "{where.name}": the '
                "object has been modified; please apply your changes to the latest version and try again",
            )
        if where.part == "status":
            changed = {**before, "status": wanted.get("status", {})}
        else:
            changed = self._with_server_fields(where.plural, wanted, before)
        if request.query.get("dryRun") or _same(changed, before):
            return before if _same(changed, before) else changed
        manager = request.by if where.part != "status" else ""
        changed["metadata"]["managedFields"] = _managed(
            previous.get("managedFields", ()), manager, self._time()
        )
        return self.store.put(where.key, changed, request.writer)

    def _patched(self, before: Json, request: Request) -> Json:
        try:
            if request.method == "PUT":
                return dict(request.body)
            if "json-patch" in request.kind:
                return patches.apply(before, request.body)
            if "merge-patch" in request.kind and "strategic" not in request.kind:
                return dict(patches.merge(before, request.body))
        except patches.PatchError as error:
            raise RefusedError(
                422, f"the server rejected our request due to an error in our request: {error}"
            ) from error
        raise RefusedError(415, f"no patch of the type {request.kind} here", "UnsupportedMediaType")

    def _with_server_fields(self, plural: str, wanted: Json, before: Json) -> Json:
        """Return the wanted object, with what clients cannot change as it was."""
        wanted = _valid(plural, wanted)
        for name in _IMMUTABLE.get(plural, ()):
            if wanted["spec"][name] != before["spec"][name]:
                raise RefusedError(422, f"spec.{name}: Invalid value: field is immutable")
        metadata = {**wanted["metadata"]}
        for name in ("uid", "creationTimestamp", "namespace", "name", "deletionTimestamp", "resourceVersion"):
            metadata.pop(name, None)
            if name in before["metadata"]:
                metadata[name] = before["metadata"][name]
        metadata = {key: value for key, value in metadata.items() if value not in ({}, [])}
        if "generation" in before["metadata"]:
            changed = wanted["spec"] != before["spec"] or (
                plural == "deployments"  # a custom resource: only its spec
                and (metadata.get("annotations") or {}) != (before["metadata"].get("annotations") or {})
            )
            metadata["generation"] = before["metadata"]["generation"] + changed
        document = {**wanted, "metadata": metadata}
        return {**document, "status": before["status"]} if "status" in before else document

    def _delete(self, where: Where, request: Request) -> Json:
        document = self._get(where)
        wanted = request.body.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name, document["metadata"][name]) != document["metadata"][name]:
                raise RefusedError(409, f"the {name} in the precondition does not match the object")
        if request.query.get("dryRun"):
            return document
        if where.plural == "pods":
            return self._delete_pod(where, document, request)
        self.store.remove(where.key, request.writer)
        return document

    def _delete_pod(self, where: Where, pod: Json, request: Request) -> Json:
        """Without a grace period at once; else the kubelet confirms it."""
        asked = request.query.get("gracePeriodSeconds", request.body.get("gracePeriodSeconds"))
        grace_s = int(asked if asked is not None else pod["spec"]["terminationGracePeriodSeconds"])
        over = pod["status"].get("phase") in {"Failed", "Succeeded"}
        if grace_s == 0 or not pod["spec"].get("nodeName") or over:
            self.store.remove(where.key, request.writer)
            return pod
        if "deletionTimestamp" in pod["metadata"]:
            return pod
        at = (self.now() + timedelta(seconds=grace_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = pod["metadata"] | {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace_s}
        return self.store.put(where.key, {**pod, "metadata": metadata}, request.writer)

    def _bind(self, where: Where, request: Request) -> Json:
        pod = self._get(where)
        self.store.put(
            where.key, {**pod, "spec": pod["spec"] | {"nodeName": request.body["target"]["name"]}}, request.by
        )
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _read(self, plural: str, request: Request) -> Json:
        document = request.body
        if plural in {"deployments", "pods"} and "spec" not in document:
            raise RefusedError(422, "spec: Required value")
        return dict(document)

    def _suffix(self) -> str:
        return "".join(self.random.choices(_SUFFIX, k=5))

    def _uid(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def _time(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def selected(query: Mapping[str, str]) -> Matches:
    """Return whether an object is in the answer of a list or a watch."""
    labels, fields = by_labels(query.get("labelSelector", "")), by_fields(query.get("fieldSelector", ""))
    return lambda document: labels(document) and fields(document)


def _valid(plural: str, document: Json) -> Json:
    try:
        return with_defaults(plural, document)
    except InvalidError as error:
        raise RefusedError(422, str(error)) from error


def _same(first: Json, second: Json) -> bool:
    """Whether they are equal but for the record of who wrote which field."""
    return _without_managers(first) == _without_managers(second)


def _without_managers(document: Json) -> Json:
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {**document, "metadata": metadata}


def _managed(records: Any, manager: str, at: str) -> list[Json]:  # noqa: ANN401 - a list or none
    """Return the record of the managers; which fields each one owns is not told here."""
    others = [record for record in records if record["manager"] != manager]
    own = [{"manager": manager, "operation": "Update", "time": at}] if manager else []
    return [*others, *own]


def _group(plural: str) -> str:
    return KINDS[plural][0].rpartition("/")[0]
