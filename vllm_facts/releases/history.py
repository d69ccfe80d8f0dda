"""The flags, values, JSON keys, defaults, variables and metrics of each release, from vLLM 0.9 on.

`scripts/vllm_history.py` writes the table from vLLM's sources. A version that the table does not cover is
neither judged nor refused: the functions return None for it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from flettner.vllm_facts.values import Knob

TABLE = Path(__file__).parent / "history.tsv"

Patch: TypeAlias = tuple[int, int, int]
Span: TypeAlias = tuple[int, int]
"""The first and the last release that has something, as places in `History.releases`."""


class History(NamedTuple):
    """`values`, `keys`: of each flag that takes only these. `open_keys`: it ignores others.

    `defaults`: the JSON of each default of a flag, a key (`flag.key`) or a variable; null where vLLM decides
    at the start. Those that never changed are left out.
    """

    releases: tuple[Patch, ...]
    flags: Mapping[Knob, tuple[Span, ...]]
    values: Mapping[Knob, Mapping[str, tuple[Span, ...]]]
    keys: Mapping[Knob, Mapping[str, tuple[Span, ...]]]
    open_keys: Mapping[Knob, Mapping[str, tuple[Span, ...]]]
    defaults: Mapping[str, Mapping[str, tuple[Span, ...]]]
    variables: Mapping[str, tuple[Span, ...]]
    metrics: Mapping[str, tuple[Span, ...]]


@cache
def read_history() -> History:
    head, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    names = head.removeprefix("# ").split(" ")
    places = {name: place for place, name in enumerate(names)} | {"": len(names) - 1}
    names_of: dict[str, dict[str, tuple[Span, ...]]] = {"flag": {}, "variable": {}, "metric": {}}
    parts: dict[str, dict[str, dict[str, tuple[Span, ...]]]] = {
        kind: {} for kind in ("value", "key", "open_key", "default")
    }
    for line in lines:
        kind, flag, name, text = line.split("\t")
        spans = tuple(
            (places[first], places[last])
            for first, _, last in (span.partition("-") for span in text.split(" "))
        )
        if kind in names_of:
            names_of[kind][flag] = spans
        else:
            parts[kind].setdefault(flag, {})[name] = spans
    return History(
        releases=tuple(map(_numbers, names)),
        flags=names_of["flag"],
        values=parts["value"],
        keys=parts["key"],
        open_keys=parts["open_key"],
        defaults=parts["default"],
        variables=names_of["variable"],
        metrics=names_of["metric"],
    )


def _numbers(name: str) -> Patch:
    first, second, third = map(int, name.split("."))
    return first, second, third


@cache
def _place(version: str) -> int | None:
    """The newest release of the table that is not newer than the version; None outside of the table."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", version)
    if not match:
        return None
    history = read_history()
    patch = int(match[1]), int(match[2]), int(match[3] or 0)
    if patch < history.releases[0] or patch[:2] > history.releases[-1][:2]:
        return None
    return bisect_right(history.releases, patch) - 1


def is_covered(version: str) -> bool:
    """Whether the table says what this release takes."""
    return _place(version) is not None


def has_flag(flag: Knob, version: str) -> bool | None:
    """Whether that release has the flag."""
    place = _place(version)
    return None if place is None else _includes(read_history().flags.get(flag, ()), place)


def has_variable(name: str, version: str) -> bool | None:
    """Whether vLLM of that release reads the environment variable."""
    place = _place(version)
    return None if place is None else _includes(read_history().variables.get(name, ()), place)


def find_default(name: str, version: str) -> str | None:
    """The default as JSON, of a flag, a key (`flag.key`) or a variable; None if it is not in the table."""
    return next(iter(_names_in(read_history().defaults.get(name, {}), version) or ()), None)


def is_known_flag(flag: Knob) -> bool:
    """Whether any release has the flag."""
    return flag in read_history().flags


def first_release_with(flag: Knob, value: str) -> str:
    """The first release in which the flag takes the value, as "0.10.2"; "" if none in the table does."""
    history = read_history()
    spans = history.values.get(flag, {}).get(value, ())
    return ".".join(map(str, history.releases[min(first for first, _ in spans)])) if spans else ""


def values_in(flag: Knob, version: str) -> frozenset[str] | None:
    """The values that the flag takes in that release; without a version, in any. Empty: other values, too."""
    return _names_in(read_history().values.get(flag, {}), version)


def keys_in(flag: Knob, version: str) -> frozenset[str] | None:
    """The keys that vLLM accepts in the JSON of the flag; empty: any."""
    return _names_in(read_history().keys.get(flag, {}), version)


def open_keys_in(flag: Knob, version: str) -> frozenset[str] | None:
    """The keys that vLLM reads in the JSON of the flag where it ignores all others."""
    return _names_in(read_history().open_keys.get(flag, {}), version)


def describe_span(spans: tuple[Span, ...]) -> str:
    """`0.9.2 to 0.17.0`, or `since 0.31.0`: the releases of the table that have it."""
    history = read_history()
    texts = [
        f"since {_format(history.releases[first])}"
        if last == len(history.releases) - 1
        else f"{_format(history.releases[first])} to {_format(history.releases[last])}"
        for first, last in spans
    ]
    return " and ".join(texts)


def describe_flag(flag: Knob) -> str:
    """The releases that have the flag."""
    return describe_span(read_history().flags[flag])


def describe_value(flag: Knob, value: str) -> str:
    """The releases in which the flag takes the value; "" for none."""
    return describe_span(read_history().values.get(flag, {}).get(value, ()))


def describe_key(flag: Knob, key: str) -> str:
    """The releases that have the key; "" for none."""
    history = read_history()
    spans = (history.open_keys.get(flag, {}).get(key, ()), history.keys.get(flag, {}).get(key, ()))
    return " and ".join(filter(None, map(describe_span, spans)))


def describe_range() -> str:
    """`0.8.5 to 0.33`"""
    first, last = read_history().releases[0], read_history().releases[-1]
    return f"{'.'.join(map(str, first)).removesuffix('.0')} to {last[0]}.{last[1]}"


def least_release(flags: Iterable[Knob]) -> str:
    """The first release that has all of the flags, as "0.17.0"; "" if each one of the table may be it."""
    history = read_history()
    firsts = (min(first for first, _ in history.flags[flag]) for flag in flags if flag in history.flags)
    place = max(firsts, default=0)
    return ".".join(map(str, history.releases[place])) if place else ""


def came_later(flag: Knob, version: str) -> bool:
    """Whether a release after that version has the flag."""
    place = _place(version)
    return place is not None and any(first > place for first, _ in read_history().flags.get(flag, ()))


def _names_in(names: Mapping[str, tuple[Span, ...]], version: str) -> frozenset[str] | None:
    if not version:
        return frozenset(names)
    place = _place(version)
    return None if place is None else frozenset(name for name in names if _includes(names[name], place))


def _includes(spans: tuple[Span, ...], place: int) -> bool:
    return any(first <= place <= last for first, last in spans)


def _format(release: Patch) -> str:
    first, second, third = release
    return f"{first}.{second}.{third}" if third else f"{first}.{second}"
