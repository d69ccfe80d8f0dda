"""Merge patches (RFC 7396) and JSON patches (RFC 6902)."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from tests.support.kubernetes.api import Json


class PatchError(Exception):
    """The patch does not fit the document, or one of its tests failed."""


def merge(document: Any, patch: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the document after a merge patch; null removes a field."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def apply(document: Json, operations: Sequence[Json]) -> Json:
    """Return the document after a JSON patch. Raises PatchError."""
    changed = deepcopy(document)
    for operation in operations:
        *parents, last = [_unescape(part) for part in operation["path"].split("/")[1:]]
        try:
            place: Any = changed
            for part in parents:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _operate(place, last, operation)
        except (LookupError, ValueError, TypeError) as error:
            raise PatchError(f"{operation['op']} {operation['path']}: {error!r}") from error
    return changed


def _operate(place: Any, last: str, operation: Json) -> None:  # noqa: ANN401
    op, value = operation["op"], deepcopy(operation.get("value"))
    if isinstance(place, list):
        _operate_on_list(place, last, op, value)
    elif op == "add":
        place[last] = value
    elif op == "test":
        _test(place.get(last), value)
    elif op == "replace":
        place[last]  # it must exist
        place[last] = value
    elif op == "remove":
        del place[last]
    else:
        raise ValueError(op)


def _operate_on_list(place: list[Any], last: str, op: str, value: Any) -> None:  # noqa: ANN401
    if op == "add":
        place.insert(len(place) if last == "-" else int(last), value)
    elif op == "test":
        _test(place[int(last)], value)
    elif op == "replace":
        place[int(last)] = value
    elif op == "remove":
        del place[int(last)]
    else:
        raise ValueError(op)


def _test(current: Any, value: Any) -> None:  # noqa: ANN401
    if current != value:
        raise ValueError(f"{current!r} is not {value!r}")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
