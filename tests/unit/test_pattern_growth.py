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

Use = tuple[str, int, str]  # pattern, flags, method


@cache
def sources() -> Mapping[Path, ast.Module]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return {file: ast.parse(file.read_text()) for file in files}


@cache
def methods_of() -> Mapping[str, set[str]]:
    """The methods that are called of each name, such as `_NUMBER.fullmatch`."""
    called: dict[str, set[str]] = defaultdict(set)
    for tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                called[ast.unparse(node.value).rpartition(".")[2]].add(node.attr)
    return called


def inline() -> Iterator[Use]:
    """Of calls such as `re.search("...", text)`."""
    for tree in sources().values():
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("re"), attr=method),
                    args=[ast.Constant(str() as text), *_],
                ) if method in METHODS:
                    yield text, 0, method


def compiled() -> Iterator[Use]:
    """Of module variables, and of those in tuples, mappings and the recognisers of lint."""
    for file in sources():
        if file.name == "__main__.py":
            continue
        name = ".".join(("flettner", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for variable, value in vars(importlib.import_module(name)).items():
            single = isinstance(value, re.Pattern)
            uses = methods_of().get(variable, {"search"}) if single else {"search"}
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


@pytest.mark.parametrize("use", sorted({*inline(), *compiled()}), ids=lambda use: f"{use[2]} {use[0][:60]}")
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
