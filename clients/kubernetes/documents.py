"""Objects of the API as JSON documents."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
Kind = Any  # a class that lightkube makes at run time


def with_kind(document: Json, kind: Kind) -> Json:
    """Return an object of a list with its kind, which the API server leaves out there."""
    return {"kind": kind.__name__, **document}


def has_labels(document: Json, wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= (document["metadata"].get("labels") or {}).items()
