"""Reads rows of facts from TOML files. Each row is checked against the dataclass that holds it.

The keys of a row are the dataclass's fields, of the same types. A list becomes a tuple. A field that is a
function holds the name of a function of the caller, because TOML holds no code.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from flettner.vllm_facts.errors import FactError

FOLDER = Path(__file__).parent
"""The folder of this package's own tables."""

Row = TypeVar("Row")
Functions = Mapping[str, Callable[..., Any]]
_NO_FUNCTIONS: Functions = MappingProxyType({})


def read_rows(
    path: Path, array: str, kind: type[Row], functions: Functions = _NO_FUNCTIONS
) -> tuple[Row, ...]:
    """The tables `[[array]]` of the file. Raises FactError naming the file, the row and the key."""
    reader = _reader(kind, functions)
    entries = _read(path).get(array, ())
    return tuple(
        reader.read(f"{path.name}: [[{array}]] {place}", entry) for place, entry in enumerate(entries, 1)
    )


def read_tables(path: Path, kind: type[Row], section: str = "") -> dict[str, Row]:
    """The tables `[name]` of the file, or of a section of it, by their names. Raises FactError."""
    reader, tables = _reader(kind, _NO_FUNCTIONS), _read(path)
    entries = tables[section] if section else tables
    return {name: reader.read(f"{path.name}: [{name}]", entry) for name, entry in entries.items()}


@cache
def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise FactError(f"{path.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Reader(Generic[Row]):
    kind: type[Row]
    hints: Mapping[str, Any]  # the type of each field
    required: frozenset[str]
    functions: Functions

    def read(self, where: str, entry: object) -> Row:
        if not isinstance(entry, dict):
            raise FactError(f"{where}: a table is needed, not {entry!r}")
        if unknown := sorted(entry.keys() - self.hints.keys()):
            raise FactError(f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(self.hints)}")
        if missing := sorted(self.required - entry.keys()):
            raise FactError(f"{where}: the key {missing[0]!r} is missing")
        return self.kind(
            **{key: self._convert(f"{where}: {key}", value, self.hints[key]) for key, value in entry.items()}
        )

    def _convert(self, where: str, value: object, hint: object) -> object:
        """The value as the field holds it."""
        origin, parts = get_origin(hint), get_args(hint)
        if origin is Callable:
            if value not in self.functions:
                names = ", ".join(sorted(self.functions)) or "none"
                raise FactError(f"{where}: no function is named {value!r}; there are: {names}")
            return self.functions[str(value)]
        if origin is tuple and isinstance(value, list):
            return tuple(self._convert(where, item, parts[0]) for item in value)
        if origin is Mapping and isinstance(value, dict):
            return {name: self._convert(f"{where}.{name}", item, parts[1]) for name, item in value.items()}
        if not _fits(value, hint):
            name = hint.__name__ if isinstance(hint, type) else str(hint).removeprefix("typing.")
            raise FactError(f"{where}: {value!r} is not of the type {name}")
        return value


def _reader(kind: type[Row], functions: Functions) -> _Reader[Row]:
    hints = get_type_hints(kind)
    own = [field for field in fields(kind) if field.init]  # type: ignore[arg-type] # a dataclass
    required = [field.name for field in own if field.default is MISSING and field.default_factory is MISSING]
    return _Reader(kind, {field.name: hints[field.name] for field in own}, frozenset(required), functions)


def _fits(value: object, hint: object) -> bool:
    """Whether a value without parts is of the type. True is no number."""
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    return type(value) is hint or (hint is float and type(value) is int)
