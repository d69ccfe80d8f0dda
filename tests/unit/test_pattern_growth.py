"""No regular expression that reads foreign text takes more than linear time.

Its hostile texts are made of the expression itself (`tests/support/pattern_growth.py`).
"""

import ast
import importlib
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import flettner
from flettner.lint.recogniser import Recogniser
from tests.support.pattern_growth import LINEAR, growth

ROOT = Path(flettner.__path__[0]).parent
PACKAGES = sorted(
    path.name for path in Path(flettner.__path__[0]).iterdir() if path.is_dir() and path.name != "__pycache__"
)
METHODS = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn")
FILES = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
A_CALL = re.compile(rf"\.(?:{'|'.join(METHODS)})\b")

Use = tuple[str, int, str]  # pattern, flags, method


@cache
def calls() -> tuple[Mapping[str, set[str]], list[Use]]:
    """The methods called of a name, such as `_NUMBER.fullmatch`; and each `re.search("...", text)`."""
    called, inline = defaultdict[str, set[str]](set), list[Use]()
    for file in FILES:
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if A_CALL.search(text) else ():
            match node:
                case ast.Attribute(attr=method) if method in METHODS:
                    called[ast.unparse(node.value).rpartition(".")[2]].add(method)
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("re"), attr=method),
                    args=[ast.Constant(str() as pattern), *_],
                ) if method in METHODS:
                    inline.append((pattern, 0, method))
    return called, inline


def compiled() -> Iterator[Use]:
    """Of module variables, and of those in tuples, mappings and the recognisers of lint."""
    for file in FILES:
        if file.name == "__main__.py":
            continue
        name = ".".join(("flettner", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for variable, value in vars(importlib.import_module(name)).items():
            single = isinstance(value, re.Pattern)
            uses = calls()[0].get(variable, {"search"}) if single else {"search"}
            for pattern in _patterns(value):
                if isinstance(pattern.pattern, str):
                    yield from ((pattern.pattern, pattern.flags & ~re.UNICODE, method) for method in uses)


def _patterns(value: object) -> Iterator[re.Pattern[str]]:
    match value:
        case re.Pattern():
            yield value
        case Recogniser():
            yield re.compile(value.pattern, re.MULTILINE)
        case tuple() | list() | set() | frozenset():
            for member in value:
                yield from _patterns(member)
        case dict():
            for member in value.values():
                yield from _patterns(member)
        case _:
            pass


@pytest.mark.parametrize("use", sorted({*calls()[1], *compiled()}), ids=lambda use: f"{use[2]} {use[0][:60]}")
def test_the_time_of_a_pattern_is_linear_in_the_text(use: Use) -> None:
    text, flags, method = use
    pattern = re.compile(text, flags)

    worst = growth(pattern, lambda hostile: _apply(pattern, method, hostile))

    assert worst[0] <= LINEAR, "four times the text takes {:.1f} times as long: {}".format(*worst)


def _apply(pattern: re.Pattern[str], method: str, text: str) -> None:
    """Use the pattern on the whole text."""
    if method.startswith("sub"):
        pattern.sub("", text)
    elif method == "finditer":
        deque(pattern.finditer(text), maxlen=0)
    else:
        getattr(pattern, method)(text)


def test_a_slow_pattern_is_found() -> None:
    for text in (r"[^/]*/*$", r"\s+$", r"x.*?y", r"(\w+)\s*=\s*(\w+)$"):
        pattern = re.compile(text)
        assert growth(pattern, pattern.search)[0] > LINEAR, text
