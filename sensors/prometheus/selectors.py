"""Finds the series that a PromQL expression reads, to query their age.

Prometheus returns samples of up to 5 minutes ago (its look-back) for a series that ended without a staleness
marker, as after a crash of Prometheus itself.
"""

import re
from dataclasses import dataclass

_STRING = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`'
_TOKEN = re.compile(
    rf"""(?P<skipped>\s+|\#[^\n]*)
    |(?P<string>{_STRING})
    |(?P<braces>\{{(?:[^{{}}"'`]|{_STRING})*\}})
    |(?P<range>\[[^\]]{{0,99}}\])
    |(?P<number>\d[\w.]*)
    |(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OPERATORS = frozenset({"and", "or", "unless", "atan2", "bool", "offset", "inf", "nan"}) | _LABEL_LISTS


@dataclass(frozen=True, slots=True)
class Selector:
    """`window`: the range of a range selector as written, "30s"; None for an instant selector."""

    series: str
    window: str | None = None


def find_selectors(promql: str) -> tuple[Selector, ...]:
    """Find each selector once, without `offset` and `@`; a metric named like a keyword ("by") is missed."""
    tokens = [(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(promql) if m.lastgroup != "skipped"]
    tokens += [("end", "")] * 2
    selectors: dict[Selector, None] = {}
    labels = False  # inside `by (...)` and the like
    for place, (kind, text) in enumerate(tokens[:-2]):
        following, after = tokens[place + 1], tokens[place + 2]
        if labels:
            labels = text != ")"
        elif kind == "name" and text.lower() in _LABEL_LISTS and following[1] == "(":
            labels = True
        elif kind == "name" and _is_metric(text, following[1]):
            braces = following[1] if following[0] == "braces" else ""
            selectors[Selector(text + braces, _window(after if braces else following))] = None
        elif kind == "braces" and (place == 0 or not _names_series(tokens[place - 1], following)):
            selectors[Selector(text, _window(following))] = None
    return tuple(selectors)


def _is_metric(name: str, following: str) -> bool:
    """True if the name is a metric: no function, operator or aggregation with leading labels."""
    return following != "(" and name.lower() not in _OPERATORS and following.lower() not in {"by", "without"}


def _names_series(before: tuple[str, str], following: tuple[str, str]) -> bool:
    return before[0] == "name" and _is_metric(before[1], following[1])


def _window(token: tuple[str, str]) -> str | None:
    return token[1][1:-1].partition(":")[0].strip() if token[0] == "range" else None


def build_age_query(promql: str) -> str | None:
    """Build PromQL for the age in seconds of the oldest sample that `promql` reads; None without series.

    The time to a sample from the future is its age. +Inf: all series of a range have ended. An instant
    selector without results has no age, because missing samples are not stale.
    """
    ages = [_selector_age(selector) for selector in find_selectors(promql)]
    named = (f'label_replace({age}, "selector", "{place}", "", "")' for place, age in enumerate(ages))
    return f"max({' or '.join(named)})" if ages else None


def _selector_age(selector: Selector) -> str:
    newest = f"max(abs(time() - timestamp({selector.series})))"
    if selector.window is None:
        return newest
    return f"({newest} or (0 * count(last_over_time({selector.series}[{selector.window}])) + Inf))"
