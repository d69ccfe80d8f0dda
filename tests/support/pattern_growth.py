"""How the time of a regular expression grows with the text: hostile texts made of the expression itself."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import inf
from re import _constants, _parser  # the tree of an expression
from typing import Any

SHORT, LONG = 1000, 4000  # characters of a text
LINEAR = 8.0  # times the time for four times the text: linear code takes 4, quadratic code 16
TRIES = 5
LEAST_S = 0.004  # a search of `LONG` that is faster than this tells nothing, and harms nobody
_COMMON = (*"a 0A_-.,:/='\"\\([{\t\né", "1.", "--", "a ", "a=", "a.", "a,", "a:", "\u202e", "\x1b[")

Item = tuple[Any, Any]


Call = Callable[[str], object]
"""A use of a pattern: its method `search`, `match` or `fullmatch`, or another one that takes a text."""


def growth(pattern: re.Pattern[str], call: Call) -> tuple[float, str]:
    """The largest ratio of the times for LONG and SHORT texts, and the period of the text that has it."""
    worst = (0.0, "")
    for head, period in _seeds(pattern):
        for end in ("", "\0"):
            ratio = _ratio(call, head, period, end)
            worst = max(worst, (ratio, f"{head!r}, then {period!r}, then {end!r}"))
            if worst[0] > LINEAR:
                return worst
    return worst


def _ratio(call: Call, head: str, period: str, end: str) -> float:
    short, long = (head + (period * (length // len(period) + 1))[:length] + end for length in (SHORT, LONG))
    if _took_s(call, long) < LEAST_S:
        return 0.0
    ratio = inf
    for _ in range(TRIES):  # a busy machine slows single calls, a quadratic pattern all of them
        slowest_s = max(_took_s(call, short), _took_s(call, short))
        if (ratio := min(ratio, _took_s(call, long) / slowest_s)) <= LINEAR:
            break
    return ratio


def _took_s(call: Call, text: str) -> float:
    began = time.thread_time()
    call(text)
    return max(time.thread_time() - began, 1e-6)


def _seeds(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """What a text begins with, and what it repeats."""
    tree = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    samples = dict.fromkeys(sample for sample in _samples(list(tree)) if sample)
    for period in dict.fromkeys(chain(_COMMON, samples)):
        yield "", period
    for head, period in _pumped(list(tree), ""):
        if period:
            yield head, period


def _samples(items: Sequence[Item]) -> Iterator[str]:
    """A text for each beginning of the expression, and of each of its parts."""
    text = ""
    for item in items:
        for part in _parts(item):
            yield from _samples(part)
        text += _sample(item)
        yield text


def _pumped(items: Sequence[Item], head: str) -> Iterator[tuple[str, str]]:
    """For each repetition: the text before it, and a text that it repeats."""
    for kind, value in items:
        if kind in _REPEATS and value[1] > 100:
            yield head, "".join(map(_sample, value[2]))
        for part in _parts((kind, value)):
            yield from _pumped(part, head)
        head += _sample((kind, value))


_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


def _parts(item: Item) -> list[Sequence[Item]]:
    kind, value = item
    if kind in _REPEATS:
        return [value[2]]
    if kind is _constants.SUBPATTERN:
        return [value[3]]
    if kind is _constants.BRANCH:
        return list(value[1])
    if kind is _constants.ATOMIC_GROUP:
        return [value]
    return []


def _sample(item: Item) -> str:
    """The shortest text that the item matches, with one round of each repetition."""
    kind, value = item
    if kind is _constants.LITERAL:
        return chr(value)
    if kind is _constants.NOT_LITERAL:
        return "b" if value == ord("a") else "a"
    if kind is _constants.ANY:
        return "a"
    if kind is _constants.IN:
        return next((char for char in "a0 A-_./:=,'\"\n(é" if _is_in(value, char)), chr(_first(value)))
    if kind in _REPEATS:
        return "".join(map(_sample, value[2])) * max(1, int(value[0]))
    return "".join(map(_sample, _parts(item)[0])) if _parts(item) else ""


def _first(members: Sequence[Item]) -> int:
    kind, value = members[0]
    if kind is _constants.LITERAL:
        return int(value)
    return int(value[0]) if kind is _constants.RANGE else ord("a")


def _is_in(members: Sequence[Item], char: str) -> bool:
    negated = members[0][0] is _constants.NEGATE
    return bool(negated) != any(_matches(member, char) for member in members)


def _matches(member: Item, char: str) -> bool:
    kind, value = member
    if kind is _constants.LITERAL:
        return bool(value == ord(char))
    if kind is _constants.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is _constants.CATEGORY:
        tests = {
            _constants.CATEGORY_DIGIT: char.isdigit(),
            _constants.CATEGORY_NOT_DIGIT: not char.isdigit(),
            _constants.CATEGORY_SPACE: char.isspace(),
            _constants.CATEGORY_NOT_SPACE: not char.isspace(),
            _constants.CATEGORY_WORD: char.isalnum() or char == "_",
            _constants.CATEGORY_NOT_WORD: not (char.isalnum() or char == "_"),
        }
        return bool(tests.get(value))
    return False
