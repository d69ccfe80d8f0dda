"""What flettner keeps in an annotation of the HTTPRoute: the split, its lease, and the backends of people.

Split and annotation change in one write, so that the guard, which knows nothing else, can end the lease.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, Self

from flettner.actuators.gateway.backends import Backends, complete
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json

PREFIX: Final = "split.flettner.dev/"
"""Of the annotation; the name of the target follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """`home`: the backends that people wrote; `written`: those of the split; `back`: those after the lease.

    `ended`: the lease is over, and `back` is in force. `renewal` changes with each renewal of the lease.
    """

    epoch: int
    process: str
    number: int
    renewal: int
    weights: Mapping[str, int]
    addresses: Mapping[str, str]
    fallback: str
    leased: str | None
    lease_s: float
    closed_s: float
    home: Backends
    written: Backends
    back: Backends
    ended: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for a text that flettner did not write."""
        try:
            fields = json.loads(text)
            record = cls(**fields)
            int(record.epoch), int(record.number), int(record.renewal), float(record.lease_s)
            return replace(
                record,
                home=complete(record.home),
                written=complete(record.written),
                back=complete(record.back),
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a record of flettner's: {error}") from error

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def expected(self) -> Backends:
        """The backends that the rule has unless a third party changed them."""
        return self.back if self.ended else self.written

    def is_of(self, route: Route) -> bool:
        asked = (route.number, dict(route.weights), route.fallback, route.leased, route.closed_s)
        return asked == (self.number, dict(self.weights), self.fallback, self.leased, self.closed_s)


def annotation(target: str) -> str:
    return PREFIX + target


def record_of(document: Json, key: str) -> SplitRecord | None:
    """The record of one target; None: flettner has not split it. Raises ActError if it is unreadable."""
    text = (document["metadata"].get("annotations") or {}).get(key)
    if text is None:
        return None
    try:
        return SplitRecord.parse(text)
    except ValueError as error:
        raise ActError(
            f"HTTPRoute {document['metadata']['name']}: the annotation {key} was changed: {error}; remove it "
            "once the backends of the rule are your own Service",
            external=True,
        ) from error


def records(document: Json) -> Iterator[tuple[str, SplitRecord]]:
    """All readable records of an HTTPRoute, by annotation."""
    for key in document["metadata"].get("annotations") or {}:
        if key.startswith(PREFIX):
            try:
                record = record_of(document, key)
            except ActError:
                continue
            if record is not None:
                yield key, record


def rules_with(document: Json, backends: Backends) -> list[int]:
    """The places of the rules that have exactly these backends."""
    rules = document.get("spec", {}).get("rules") or []
    return [at for at, rule in enumerate(rules) if complete(rule.get("backendRefs") or []) == list(backends)]


def write_record(
    document: Json, key: str, record: SplitRecord | None, rules: list[int], backends: Backends
) -> list[Json]:
    """The JSON patch that puts the record and the backends of the rules in place, and changes nothing else.

    It is refused if the HTTPRoute has changed since it was read. None: without a record.
    """
    annotations = dict(document["metadata"].get("annotations") or {})
    annotations.pop(key, None)
    if record is not None:
        annotations[key] = record.text()
    changed = [at for at in rules if complete(document["spec"]["rules"][at]["backendRefs"]) != list(backends)]
    return [
        {"op": "add", "path": "/metadata/resourceVersion", "value": document["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
        *(
            {"op": "replace", "path": f"/spec/rules/{at}/backendRefs", "value": list(backends)}
            for at in changed
        ),
    ]


def end_lease(document: Json, key: str, record: SplitRecord) -> list[Json]:
    """The JSON patch that ends the lease: the rules that still have the split get `back`."""
    ended = replace(record, ended=True)
    return write_record(document, key, ended, rules_with(document, record.written), record.back)
