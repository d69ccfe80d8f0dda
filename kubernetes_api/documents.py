"""Objects of the API as JSON documents."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
Kind = Any  # a class that lightkube makes at run time


def has_labels(document: Json, wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= (document["metadata"].get("labels") or {}).items()
