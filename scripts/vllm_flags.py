# ruff: noqa: INP001 - run by the Python of another environment, never imported
"""Writes the flag table of a vLLM release. Run it with the Python that has that vLLM:

    VLLM_VENV/bin/python scripts/vllm_flags.py

It writes vllm_facts/releases/flags-<release>.json, one line for each flag of `vllm serve`: the diff to the
table of the release before shows new, removed and changed flags. See CONTRIBUTING.md.
"""

import argparse
import dataclasses
import enum
import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vllm import __version__
from vllm.config import ModelConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs, make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

RELEASES = Path(__file__).parent.parent / "vllm_facts/releases"
TYPES = {"int": "int", "float": "float", "human_readable_int": "size", "human_readable_int_or_auto": "size"}
JSON_TYPES = {"loads": "json", "parse_dataclass": "json", "union_dict_and_str": "json_or_text"}


def flags() -> dict[str, dict[str, Any]]:
    """Return all flags by their canonical names, each with the group of its config class."""
    parser = make_arg_parser(FlexibleArgumentParser())
    described: dict[str, dict[str, Any]] = {}
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no public list
        for action in group._group_actions:  # noqa: SLF001
            names = [name for name in action.option_strings if name.startswith("--")]
            if names and "--help" not in names:
                described[_canonical(names[0])] = {"group": group.title, **_described(action, names)}
    return dict(sorted(described.items()))


def _described(action: argparse.Action, names: list[str]) -> dict[str, Any]:
    kind = _type(action)
    short = [name[1:] for name in action.option_strings if not name.startswith("--")]
    aliases = [_canonical(name) for name in names[1:] if not name.startswith("--no-")]
    choices = [choice for choice in action.choices or () if choice not in (None, "None")]
    described = {
        "type": kind,
        "default": _default(action),
        "choices": [choice if kind == "int" else str(choice) for choice in choices],
        "several": action.nargs in ("+", "*"),
        "one_way": kind == "bool" and not any(name.startswith("--no-") for name in names),
        "short": short,
        "aliases": aliases,
        "object": kind == "json" and _is_object(action),
        "keys": _keys(action.dest) if kind == "json" else [],
    }
    return {
        key: value for key, value in described.items() if value or (key == "default" and value is not None)
    }


def _canonical(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _type(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "bool"
    names = {function.__name__ for function in _functions(action.type)}
    for function, kind in (JSON_TYPES | TYPES).items():
        if function in names:
            return kind
    return "int" if isinstance(action.default, int) else "text"  # an enum of levels


def _functions(function: object) -> Iterator[Callable[[str], Any]]:
    """Yield the function that reads the value, out of vLLM's wrappers `optional_type` and `parse_type`."""
    if callable(function):
        yield function
        for cell in getattr(function, "__closure__", None) or ():
            yield from _functions(cell.cell_contents)


def _default(action: argparse.Action) -> bool | float | str | None:
    value = action.default.value if isinstance(action.default, enum.Enum) else action.default
    return value if isinstance(value, bool | int | float | str) and value != argparse.SUPPRESS else None


def _config_of(name: str) -> type | None:
    """Return the dataclass that the JSON of a flag is read into."""
    for owner in _config_classes():
        for field in dataclasses.fields(owner):
            if field.name == name:
                return next(_dataclasses(field.type), None)
    return None


def _config_classes() -> tuple[type, ...]:
    """Return EngineArgs, VllmConfig, its parts and the parts of its ModelConfig."""
    parts = [part for owner in (VllmConfig, ModelConfig) for part in _parts(owner)]
    return (VllmConfig, *parts, EngineArgs)


def _parts(owner: type) -> Iterator[type]:
    for field in dataclasses.fields(owner):
        yield from _dataclasses(field.type)


def _dataclasses(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _dataclasses(part)


def _keys(name: str) -> list[str]:
    config = _config_of(name)
    if config is None:
        return []
    if getattr(config, "__pydantic_config__", {}).get("extra") != "forbid":
        return []
    return sorted(field.name for field in dataclasses.fields(config) if field.init)


def _is_object(action: argparse.Action) -> bool:
    """Return whether the JSON is keys and values, by the annotation of the field."""
    owners = (EngineArgs, *FrontendArgs.__mro__)
    hints = (inspect.get_annotations(owner).get(action.dest, "") for owner in owners)
    return _config_of(action.dest) is not None or any("dict" in str(hint).lower() for hint in hints)


def sources(groups: set[str]) -> dict[str, str]:
    """Return the file of vLLM's source that defines each group of flags."""
    owners = {owner.__name__: owner for owner in _config_classes()} | {"Frontend": FrontendArgs}
    return {group: _file_of(owners.get(group, EngineArgs)) for group in sorted(groups)}


def _file_of(owner: type) -> str:
    package = Path(inspect.getfile(EngineArgs)).parent.parent
    return Path(inspect.getfile(owner)).relative_to(package).as_posix()


def main() -> int:
    table = flags()
    head = {
        "version": __version__.partition("+")[0],
        "sources": sources({flag["group"] for flag in table.values()}),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in table.items()]
    file = RELEASES / f"flags-{'.'.join(__version__.split('.')[:2])}.json"
    text = json.dumps(head, indent=1).removesuffix("\n}")
    file.write_text(text + ',\n "flags": {\n' + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")
    print(f"{file}: {len(table)} flags")  # noqa: T201 - its answer
    return 0


sys.exit(main())
