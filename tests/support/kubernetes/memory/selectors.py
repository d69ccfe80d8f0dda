"""Label and field selectors, as the parameters of a request have them."""

import re
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes.api import Json

Matches = Callable[[Json], bool]

_SET = re.compile(r"\s*([^\s!=,]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_PART = re.compile(r"(?:[^,(]|\([^)]*\))+")


def by_labels(selector: str) -> Matches:
    """Return whether an object has the labels of "app=vllm,tier in (a,b),!old"."""
    tests = [_label_test(part) for part in _PART.findall(selector)]
    return lambda document: all(test(document["metadata"].get("labels") or {}) for test in tests)


def _label_test(part: str) -> Callable[[Json], bool]:
    if match := _SET.fullmatch(part):
        key, how, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda labels: (labels.get(key) in values) is (how == "in")
    if "!=" in part:
        key, _, value = part.partition("!=")
        return lambda labels: labels.get(key) != value
    if "=" in part:
        key, _, value = part.replace("==", "=").partition("=")
        return lambda labels: labels.get(key) == value
    if part.startswith("!"):
        return lambda labels: part[1:] not in labels
    return lambda labels: part in labels


def by_fields(selector: str) -> Matches:
    """Return whether an object has the fields of "involvedObject.uid=…,status.phase!=Failed"."""
    tests = [_field_test(part) for part in filter(None, selector.split(","))]
    return lambda document: all(test(document) for test in tests)


def _field_test(part: str) -> Matches:
    key, sign, value = re.split(r"(!=|==|=)", part, maxsplit=1)
    return lambda document: (_field(document, key) == value) is (sign != "!=")


def _field(node: Any, key: str) -> str:  # noqa: ANN401 - any JSON
    for name in key.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    return "" if node is None else str(node)
