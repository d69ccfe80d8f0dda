"""The words of a command line for items of a list and arguments of a call in Python source."""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flettner.vllm_facts.flag_table import ONE_WAY, SEVERAL, is_switch
from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.python_values import UNKNOWN, Source, dotted

_NOT_OF_ENGINE = frozenset({"disable_log_requests", "usage_context", "stat_loggers", "self"})


@dataclass(slots=True)
class Arguments:
    """The flags of a call, those that hide in what is not literal, and each value by its name."""

    words: list[Word] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    values: Mapping[str, ast.expr] = field(default_factory=dict)


def word_of_item(source: Source, node: ast.expr) -> Word:
    """A string, or whatever an expression comes to; a shell's variable where that is unknown."""
    start, end = source.place(node)
    value = source.resolve(node)
    if isinstance(node, ast.Constant) and isinstance(value, str):
        return Word(text=value, start=start, end=end, form="flow")
    if value is UNKNOWN or not isinstance(value, (str, int, float)):
        return Word(text=f"${{{name_of(node) or 'VALUE'}}}", start=start, end=end, form="computed", live=True)
    return Word(text=str(value), start=start, end=end, form="computed")


def name_of(node: ast.AST) -> str:
    """The last name in an expression, which stands for its value: `args.model`."""
    match node:
        case ast.FormattedValue(value=inner) | ast.Starred(value=inner):
            return name_of(inner)
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return name_of(inner)
        case ast.Subscript(slice=ast.Constant(value=str() as name)) if name.isidentifier():
            return name
        case ast.expr():
            return dotted(node).rpartition(".")[2]
        case _:
            return ""


def read_arguments(source: Source, node: ast.expr) -> Arguments:
    """The flags of a call's keywords, of `dict(…)` or of a literal dictionary."""
    arguments = Arguments()
    values: dict[str, ast.expr] = {}
    for name, place, value in _pairs(source, node):
        if name:
            values[name] = value
            if source.resolve(value) is UNKNOWN and is_switch(name):
                flag = "--" + name.replace("_", "-")
                arguments.unread.append(f"line {source.line(value)}: whether {flag} is added is unknown")
                continue
            arguments.words += _words_of_pair(source, name, place, value)
        else:
            written = ast.unparse(value)[:60]
            arguments.unread.append(f"line {source.line(value)}: the flags in **{written} are unknown")
    arguments.values = values
    if isinstance(node, ast.Name):
        _add_entries(source, node.id, arguments)
    return arguments


def _add_entries(source: Source, name: str, arguments: Arguments) -> None:
    """What later statements set in the dictionary: `KWARGS["dtype"] = "half"`."""
    for statement in ast.walk(source.tree):
        match statement:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str() as key))],
                value=value,
            ) if owner == name:
                flags = " ".join(word.text for word in _words_of_pair(source, key, (0, 0), value))
                flags = flags or f"--{key.replace('_', '-')}"
                arguments.unread.append(f"line {source.line(statement)}: whether {flags} is added is unknown")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="update")) if owner == name:
                arguments.unread.append(f"line {source.line(statement)}: what is added to {name} is unknown")


def _pairs(source: Source, node: ast.expr) -> Iterator[tuple[str, tuple[int, int], ast.expr]]:
    """Each name with the place of its argument and its value; no name for what is not literal."""
    if isinstance(node, ast.Name) and isinstance(
        meant := source.constants.get(node.id), (ast.Dict, ast.Call)
    ):
        node = meant
    keys: list[tuple[ast.expr | None, str, ast.expr, tuple[int, int]]] = []
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            name = source.resolve(key) if key is not None else ""
            start = source.place(key if key is not None else value)[0]
            keys.append((key, name if isinstance(name, str) else "", value, (start, source.place(value)[1])))
    elif isinstance(node, ast.Call):
        keys = [(None, each.arg or "", each.value, source.place(each)) for each in node.keywords]
    else:
        yield "", (0, 0), node
        return
    for key, name, value, place in keys:
        if name:
            yield name, place, value
        elif key is None and isinstance(value, (ast.Name, ast.Dict)):
            yield from _pairs(source, value)
        else:
            yield "", place, value


def _words_of_pair(source: Source, name: str, place: tuple[int, int], node: ast.expr) -> list[Word]:
    value, flag = source.resolve(node), "--" + name.replace("_", "-")
    literal = not any(isinstance(each, (ast.Name, ast.Call, ast.JoinedStr)) for each in ast.walk(node))
    if value is None or name in _NOT_OF_ENGINE or not name.isidentifier():
        return []
    if isinstance(value, bool):
        if not value and name in ONE_WAY:
            return []
        form: Any = "keyword" if literal else "computed"
        return [Word(text=flag if value else f"--no-{flag[2:]}", start=place[0], end=place[1], form=form)]
    key = Word(text=flag, start=place[0], end=place[1], form="keyword")
    start, end = source.place(node)
    if value is UNKNOWN:
        text = f"${{{name_of(node) or 'VALUE'}}}"
        return [key, Word(text=text, start=start, end=end, form="computed", live=True)]
    if isinstance(value, list) and name in SEVERAL:
        return [key, *(Word(text=str(each), form="none") for each in value)] if value else []
    text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    return [key, Word(text=text, start=start, end=end, form="literal" if literal else "computed")]
