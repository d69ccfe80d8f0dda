"""The rules that tables of allowed fields consist of.

A rule checks one value and yields a reason for each fault. A null never reaches a rule: the engine treats it
as an absent field.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from flettner.tools.docker_proxy.policy import ProxyPolicy

Reasons = Iterator[str]


class HostFiles(Protocol):
    def __call__(self, path: str) -> tuple[str, bool]:
        """Return the resolved `path`, and whether it is a directory or a plain file. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldContext:
    policy: ProxyPolicy
    files: HostFiles


Rule = Callable[[str, object, FieldContext], Reasons]
FieldTable = Mapping[str, Rule]


def find_refusals(where: str, value: object, table: FieldTable, context: FieldContext) -> Reasons:
    """Check an object of the Engine: each key must be in `table`, case-sensitively."""
    if not isinstance(value, dict):
        yield f"{where}: must be an object"
        return
    for key, inner in value.items():
        rule = table.get(key)
        if rule is not None:
            if inner is not None:
                yield from rule(f"{where}.{key}".lstrip("."), inner, context)
        elif not (key in context.policy.create.ignore_empty and is_empty(inner)):
            yield f"{where}.{_shorten(key)}: {_explain_unknown(key, table)}".lstrip(".")


def _explain_unknown(key: str, table: FieldTable) -> str:
    folded = unicodedata.normalize("NFKC", key).casefold()
    for field_name in table:
        if field_name.casefold() == folded:
            return f"the engine would read this key as {field_name}: write it so"
    return "not a field that a container of flettner may set"


def _shorten(text: str) -> str:
    return ascii(text[:60])[1:-1]


def is_empty(value: object) -> bool:
    return value is None or value is False or value in ("", 0, [], {})


def nothing(where: str, value: object, _: FieldContext) -> Reasons:
    if not is_empty(value):
        yield f"{where}: must be left empty"


def flag(where: str, value: object, _: FieldContext) -> Reasons:
    if not isinstance(value, bool):
        yield f"{where}: must be true or false"


def number(where: str, value: object, _: FieldContext) -> Reasons:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        yield f"{where}: must be an integer"


def text(where: str, value: object, _: FieldContext) -> Reasons:
    if not isinstance(value, str):
        yield f"{where}: must be a string"


def texts(where: str, value: object, context: FieldContext) -> Reasons:
    return each(text)(where, value, context)


def text_or_texts(where: str, value: object, context: FieldContext) -> Reasons:
    return text(where, value, context) if isinstance(value, str) else texts(where, value, context)


def one_of(*allowed: str) -> Rule:
    def rule(where: str, value: object, _: FieldContext) -> Reasons:
        if value not in allowed:
            yield f"{where}: {shown(value)} is not one of {', '.join(filter(None, allowed))}"

    return rule


def listed(of: Callable[[ProxyPolicy], tuple[str, ...]], key: str, *always: str) -> Rule:
    """Return a rule for a text that must be in a list of the policy; the reason names the list as `key`."""

    def rule(where: str, value: object, context: FieldContext) -> Reasons:
        if value not in (*always, *of(context.policy)):
            yield f"{where}: {shown(value)} is not in the policy's {key}"

    return rule


def each(inner: Rule) -> Rule:
    def rule(where: str, value: object, context: FieldContext) -> Reasons:
        if not isinstance(value, list):
            yield f"{where}: must be a list"
            return
        for item in value:
            yield from inner(where, item, context)

    return rule


def values(inner: Rule, keys: str = r"[^\x00-\x1f]{1,512}") -> Rule:
    """Return a rule for a map with keys that match `keys`, and values, unless null, that `inner` checks."""

    def rule(where: str, value: object, context: FieldContext) -> Reasons:
        if not isinstance(value, dict):
            yield f"{where}: must be an object"
            return
        for key, item in value.items():
            if not re.fullmatch(keys, key):
                yield f"{where}: the key {_shorten(key)} is not allowed"
            elif item is not None:
                yield from inner(f"{where}.{_shorten(key)}", item, context)

    return rule


def fields(table: FieldTable) -> Rule:
    return lambda where, value, context: find_refusals(where, value, table, context)


def shown(value: object) -> str:
    """Return a value for a reason: short, one line, plain characters. Never used for possible secrets."""
    return ascii(value)[:120]
