"""What is wrong with a config file beyond one table, and pydantic's findings in the operator's words."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent.config.listen import SOCKET, UNIX
from agent.config.tables import DEFAULT_LISTEN, FileTable
from agent.config.types import address, listens, split_address
from agent.plugins.option_errors import describe_problem, suggest_name

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound


_DEPTHS = {
    "agent": 1,
    "api": 1,
    "policies": 2,
    "targets.slo": 1,
    "targets.engine": 1,
    "targets.traffic": 1,
    "targets.sensors": 2,
    "targets.bounds": 2,
    "targets.rollout": 1,
    "targets.quality": 1,
}
"""How many names of a path are the name of the table."""


def complaints(error: ValidationError, document: Mapping[str, object]) -> Iterator[str]:
    """Every finding as `[table] key: what is wrong`."""
    for details in error.errors(include_url=False):
        yield _complaint(details, document)


def of_target(document: Mapping[str, object], index: int) -> str:
    """` of NAME` for the heads of one target's tables; nothing where there is only one target."""
    targets = document.get("targets")
    if not isinstance(targets, tuple) or len(targets) <= 1:
        return ""
    target = targets[index]
    name = target.get("name") if isinstance(target, dict) else None
    return f" of {name}" if isinstance(name, str) and name.isprintable() else f" of number {index + 1}"


def clashes(document: Mapping[str, Any]) -> Iterator[str]:
    """What two parts of the file both want."""
    targets = _targets(document)
    names = [target["name"] for target in targets if isinstance(target.get("name"), str)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"[[targets]] name: {name} is the name of {names.count(name)} targets: each needs its own"
    listeners = [("[api] listen", each) for each in _of_the_api(document.get("api"))]
    listeners += [
        (f"[targets.traffic{of_target(document, i)}] listen", _listen(target.get("traffic"), DEFAULT_LISTEN))
        for i, target in enumerate(targets)
    ]
    for (one, here), (other, there) in combinations(listeners, 2):
        if here and there and _same_port(here, there):
            yield f"{other}: {there} is taken by {one} ({here}): give it another port"


def unknown_knobs(
    document: Mapping[str, Any],
    known: Mapping[str, object],
    flags: Collection[str],
    tunable: Callable[[str], bool],
) -> Iterator[str]:
    """Bounds without effect: a typing error here would leave a knob with its default bounds.

    `flags`: those of vLLM besides the known ones; of them, and of those not tunable, the table names values.
    """
    for index, target in enumerate(_targets(document) if known else ()):
        bounds = target.get("bounds")
        for knob, table in bounds.items() if isinstance(bounds, dict) else ():
            name = f'"{knob}"' if "." in knob else knob
            head = f"[targets.bounds.{name}{of_target(document, index)}]"
            if knob.partition(".")[0] not in (*known, *flags):
                yield f"{head}: unknown knob{suggest_name(knob, known)}"
            elif isinstance(table, dict) and not tunable(knob) and not _limited(table):
                yield (
                    f"{head}: trimtab does not change {knob} unless its values are named:"
                    " give `allowed`, or min and max"
                )


def _limited(table: Mapping[str, object]) -> bool:
    return any(table.get(key) not in (None, ()) for key in ("allowed", "min", "max"))


def _targets(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    targets = document.get("targets")
    return [t if isinstance(t, dict) else {} for t in targets] if isinstance(targets, tuple) else []


def _listen(table: object, default: str) -> str:
    """The address that the table asks for; empty if it is none (which is another complaint)."""
    try:
        return address(table.get("listen", default) if isinstance(table, dict) else default)
    except ValueError:
        return ""


def _of_the_api(table: object) -> tuple[str, ...]:
    """Its TCP addresses; none where they cannot be read (which is another complaint)."""
    try:
        written = listens(table["listen"]) if isinstance(table, dict) and "listen" in table else (SOCKET,)
    except ValueError:
        return ()
    return tuple(each for each in written if not each.startswith(UNIX))


def _same_port(one: str, other: str) -> bool:
    (host, port), (host2, port2) = split_address(one), split_address(other)
    same_host = host == host2 or host in _WILDCARDS or host2 in _WILDCARDS
    return same_host and int(port) == int(port2) != 0


def _complaint(details: ErrorDetails, document: Mapping[str, object]) -> str:
    path = list(details["loc"])
    if details["type"] == "extra_forbidden":
        known = _table_at(FileTable, path[:-1]).model_fields
        return f"{_written(path, document)}: unknown key{suggest_name(str(path[-1]), known)}"
    if details["type"] == "wrong_key":
        return f"{_written([*path, details['ctx']['key']], document)}: {details['ctx']['what']}"
    return f"{_written(path, document)}: {describe_problem(details)}"


def _table_at(annotation: Any, path: Sequence[str | int]) -> type[BaseModel]:  # noqa: ANN401 - a type form
    """The table that a path leads to, through optional ones, lists and tables of tables."""
    for part in path:
        found = _model_in(annotation)
        by_name = annotation if annotation is found else None
        annotation = found.model_fields[str(part)].annotation if by_name or _optional(annotation) else found
    return _model_in(annotation)


def _optional(annotation: Any) -> bool:  # noqa: ANN401 - a type form
    return type(None) in get_args(annotation)


def _model_in(annotation: Any) -> type[BaseModel]:  # noqa: ANN401 - a type form
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_model_in(arg) for arg in get_args(annotation) if arg not in (str, type(None), ...))


def _written(path: Sequence[str | int], document: Mapping[str, object]) -> str:
    """`[table] key.key[index]`, as the operator wrote it."""
    if path[0] == "targets":
        return _written_of_target(path[1:], document)
    if path[0] == "notify":
        return " ".join(filter(None, ("[[notify]]", _dotted(path[2:]))))
    depth = _DEPTHS.get(str(path[0]), 0)
    table, keys = path[:depth], path[depth:]
    head = f"[{'.'.join(map(str, table))}]" if table else ""
    return " ".join(filter(None, (head, _dotted(keys))))


def _written_of_target(path: Sequence[str | int], document: Mapping[str, object]) -> str:
    if not path:
        return "[[targets]]"
    of, rest = of_target(document, int(path[0])), path[1:]
    depth = _DEPTHS.get(f"targets.{rest[0]}", 0) if rest else 0
    table = ".".join(("targets", *map(str, rest[:depth])))
    head = f"[{table}{of}]" if depth else f"[[{table}{of}]]"
    return " ".join(filter(None, (head, _dotted(rest[depth:]))))


def _dotted(keys: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
