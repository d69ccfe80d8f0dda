"""docs/reference/config.md: every key of the config, from the tables that check it and from the plugins."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flettner.agent.config.tables import FileTable, SloTable
from flettner.agent.plugins import loader
from flettner.primitives.address import Address, UnixSocket
from flettner.tools.cli.knobs import _option
from tests.integration.docs.markdown import code, table
from tests.integration.docs.meanings import MEANINGS, OPTIONS

HEAD = """\
# Config

Every key of the config file, with its default. A duration is `"500ms"`, `"30s"`, `"10m"`, `"1h"`, `"2d"`, or
a number of seconds, at most 366 d. Start from `examples/flettner.toml` or `examples/docker.toml`;
`flettner check FILE` lists all problems by key. An unknown key is an error.

This page is generated: `python -m tests.integration.docs.reference`.
"""
SHAPES = {
    "seconds": "duration",
    "positive_seconds": "duration above 0",
    "address": "`IP:port`",
    "listeners": "`unix:/path`, `IP:port`, or up to 8 of them",
    "host_name": "host name",
    "network": "IP address or network",
    "account": "account",
    "certificate_name": "name in a certificate",
    "path_text": "path",
    "public_url": "URL",
    "target_name": "a-z, 0-9 and `-`, at most 63",
    "switch": "table or `false`",
    "knob_value": "value",
    "_check_lease": "duration of 5 s to 60 s",
    "_check_weights": "1 to 20 tables",
    "_check_targets": "at least one table",
}
"""By the name of the function that checks the value."""
SIGNS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
PLUGINS = (
    ("actuators", "targets.engine", ("process", "docker", "kubernetes")),
    ("actuators", "targets.traffic", ("envoy", "envoy_deployment", "gateway")),
    ("sensors", "targets.sensors", ()),
    ("notifiers", "notify", ()),
    ("forges", "targets.git", ()),
    ("authenticators", "api.authenticators", ()),
)
Row = tuple[str, str, str, str]


def shape(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:  # noqa: ANN401 - a type form
    """Return a type with its bounds, in the wording of the page."""
    for check in reversed(metadata):
        if word := SHAPES.get(getattr(getattr(check, "func", None), "__name__", "")):
            return word
    if hasattr(annotation, "__metadata__"):
        return shape(annotation.__origin__, (*annotation.__metadata__, *metadata))
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(shape(choice, metadata) for choice in inner if choice is not type(None))
    if origin is Literal:
        return ", ".join(code(choice) for choice in inner)
    if origin is tuple:
        return f"list: {shape(inner[0])}"
    if origin in (dict, Mapping):
        return f"table: {shape(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    words = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", date: "date"}
    word = words[annotation]
    return ", ".join((word, *_bounds(metadata)))


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    for check in metadata:
        yield from _bounds(tuple(check.metadata)) if isinstance(check, FieldInfo) else ()
        if isinstance(check, Ge | Gt | Le | Lt):
            sign = type(check).__name__.lower()
            yield SIGNS[sign].format(f"{getattr(check, sign):,}")


def default(field: FieldInfo, kind: str) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "see below" if _many(field.default) else code(written(field.default, duration=_lasts(kind)))


def _many(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value)


def _lasts(kind: str) -> bool:
    return kind.startswith("duration")


def written(value: object, *, duration: bool = False) -> str:
    """Return the value as in the file; empty for None and for a table with its own defaults."""
    match value:
        case None | BaseModel():
            return ""
        case bool():
            return str(value).lower()
        case float() if duration:
            units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
            return next(f'"{value / size:g}{unit}"' for unit, size in units if value % size == 0)
        case str() | Address() | UnixSocket():
            return f'"{value}"'
        case tuple() | list():
            return f"[{', '.join(map(written, value))}]"
        case Mapping():
            return (
                "{}" if not value else f"{{ {', '.join(f'{k} = {written(v)}' for k, v in value.items())} }}"
            )
        case _:
            return str(value)


def tables(model: type[BaseModel], name: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every table of the file with the path to it; the objectives of an SLO share one."""
    yield name, model
    for key, field in model.model_fields.items():
        path = f"{name}.{key}".lstrip(".")
        objective = model is SloTable and key != "errors"
        for inner in _models(field.annotation):
            if not objective or key == "ttft":
                several = ".KNOB" if get_origin(field.annotation) is dict else ""
                yield from tables(inner, f"{name}.OBJECTIVE" if objective else f"{path}{several}")


def _models(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type form
    if hasattr(annotation, "__metadata__"):
        return _models(annotation.__origin__)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def rows(model: type[BaseModel], name: str) -> Iterator[Row]:
    """Raises KeyError if MEANINGS lacks a key."""
    for key, field in model.model_fields.items():
        path = f"{name}.{key}".lstrip(".")
        leads_on = _models(field.annotation) and path not in MEANINGS
        if not leads_on:
            kind = shape(field.annotation, tuple(field.metadata))
            yield code(key), kind, default(field, kind), MEANINGS[path]


def document() -> str:
    sections = [HEAD]
    for name, model in tables(FileTable):
        title = f"`[{name or 'policies'}]`"
        title = title.replace("[targets]", "[[targets]]").replace("[notify]", "[[notify]]")
        if keys := list(rows(model, name)):
            sections.append(f"## {title}\n\n{table(('key', 'type', 'default', ''), keys)}")
        if name == "targets.rollout":
            sections[-1] += (
                f"\nThe default steps:\n\n```toml\n[targets.rollout]\n{_default_steps(model)}\n```\n"
            )
    for kind, path, names in PLUGINS:
        sections += (_plugin(kind, path, name) for name in names or loader.list_plugins(kind))
    return "\n".join(sections)


def _default_steps(model: type[BaseModel]) -> str:
    steps = "".join(f"  {{ {_step(step)} }},\n" for step in model.model_fields["steps"].default)
    return f"steps = [\n{steps}]"


def _step(step: BaseModel) -> str:
    durations = ("at_least", "at_most")
    return ", ".join(f"{key} = {written(value, duration=key in durations)}" for key, value in step)


def _plugin(kind: str, path: str, name: str) -> str:
    plugin = loader.load_plugin(kind, name)
    source = "\n".join(loader.read_source(base.__module__) for base in plugin.__mro__ if base is not object)
    table_name = "[[notify]]" if kind == "notifiers" else f"[{path}]"
    head = (
        f"`[{path}.{name}]`"
        if kind in {"sensors", "authenticators"}
        else f'`{table_name}`, `{"forge" if kind == "forges" else "kind"} = "{name}"`'
    )
    hints = get_type_hints(plugin)
    does = (inspect.getdoc(sys.modules[plugin.__module__]) or "").split("\n\n")[0]
    options = [_option(option, source) for option in loader.options_of(plugin).values()]
    given = [
        (
            code(option_row["name"]),
            shape(hints[option_row["name"]]),
            "required" if option_row["required"] else code(written(option_row["default"])),
            option_row["meaning"]
            or OPTIONS.get(f"{name}.{option_row['name']}")
            or OPTIONS[option_row["name"]],
        )
        for option_row in options
    ]
    keys = table(("key", "type", "default", ""), given) if given else "No keys of its own.\n"
    return f"## {head}\n\n{does}\n\n{keys}"
