"""Checks across the tables of a config file, and pydantic's errors as `[table] key: problem`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flettner.agent.audit.anchors import LOG, SYSLOG
from flettner.agent.config.listen import SOCKET
from flettner.agent.config.plugin_tables import ConfiguredPlugin
from flettner.agent.config.tables import DEFAULT_LISTEN, DEFAULT_TRAFFIC, ApiTable, FileTable
from flettner.agent.config.types import address, listeners
from flettner.agent.domain.model import SERVERS
from flettner.agent.domain.upgrade import MODEL_KNOBS
from flettner.agent.plugins.option_errors import describe_problem, quote, suggest_name
from flettner.primitives.address import Address
from flettner.vllm_facts.knobs import FLAGS, KNOBS, tunable

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_DEPTHS = {
    "agent": 1,
    "api": 1,
    "windows": 1,
    "policies": 2,
    "targets.slo": 1,
    "targets.engine": 1,
    "targets.traffic": 1,
    "targets.sensors": 2,
    "targets.bounds": 2,
    "targets.windows": 1,
    "targets.rollout": 1,
    "targets.quality": 1,
    "targets.upgrades": 1,
    "targets.cost": 1,
}
"""The number of path elements that form the table's name."""


def describe_errors(error: ValidationError, document: Mapping[str, object]) -> Iterator[str]:
    """Describe every error as `[table] key: problem`."""
    for details in error.errors(include_url=False):
        yield _describe_error(details, document)


def target_suffix(document: Mapping[str, object], index: int) -> str:
    """Return ` of NAME` for the table names of one target; empty if there is only one target."""
    targets = document.get("targets")
    if not isinstance(targets, tuple) or len(targets) <= 1:
        return ""
    target = targets[index]
    name = target.get("name") if isinstance(target, dict) else None
    return f" of {name}" if isinstance(name, str) and name.isprintable() else f" of number {index + 1}"


def find_clashes(document: Mapping[str, Any]) -> Iterator[str]:
    """Find target names and addresses that are used twice."""
    targets = _targets(document)
    names = [target["name"] for target in targets if isinstance(target.get("name"), str)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"[[targets]] name: {name} is the name of {names.count(name)} targets: give each its own name"
    api = document.get("api")
    addresses: list[tuple[str, Address | None]] = [("[api] listen", listen) for listen in _api_addresses(api)]
    if isinstance(api, dict) and "health" in api:
        addresses.append(("[api] health", _address(api["health"])))
    addresses += [
        (
            f"[targets.traffic{target_suffix(document, i)}] listen",
            _listen(target.get("traffic"), DEFAULT_LISTEN),
        )
        for i, target in enumerate(targets)
    ]
    for (first, taken), (second, wanted) in combinations(addresses, 2):
        if taken is not None and wanted is not None and _same_port(taken, wanted):
            yield f"{second}: {wanted} is taken by {first} ({taken}): give it another port"


def find_disagreements(
    proxies: Sequence[tuple[str, ConfiguredPlugin | None]], document: Mapping[str, Any]
) -> Iterator[str]:
    """Find options of one program that serves all targets, for which two targets have different values.

    `proxies`: the name and the traffic of each target.
    """
    agreed: dict[tuple[str, str], tuple[str, object]] = {}
    for index, (target, proxy) in enumerate(proxies):
        if proxy is None:
            continue
        for option in getattr(proxy.plugin, "shared_options", ()):
            value = getattr(proxy.plugin, option)
            first, wanted = agreed.setdefault((proxy.name, option), (target, value))
            if value != wanted:
                table = f"[targets.traffic{target_suffix(document, index)}]"
                yield (
                    f"{table} {option}: {quote(value)} differs from {quote(wanted)} of {first}, and one "
                    f"program serves both: give them the same"
                )


def find_shared_servers(
    engines: Sequence[tuple[str, ConfiguredPlugin | None]], document: Mapping[str, Any]
) -> Iterator[str]:
    """Find servers that two targets name. `engines`: the name and the engine of each target."""
    owners: dict[tuple[str, ...], str] = {}
    for index, (target, engine) in enumerate(engines):
        for server in getattr(engine.plugin, "exclusive", ()) if engine else ():
            owner = owners.setdefault((engine.name if engine else "", *server), target)
            if owner != target:
                table = f"[targets.engine{target_suffix(document, index)}]"
                option, name, *_ = server
                yield f"{table} {option}: {name} serves {owner} already: name it in one target only"


def find_unknown_bounds(document: Mapping[str, Any]) -> Iterator[str]:
    """Find bounds without effect: a misspelled knob would keep its default bounds.

    For a knob that is not tunable, or of which only the name is known, the table must name the values.
    """
    for index, target in enumerate(_targets(document)):
        bounds = target.get("bounds")
        for knob, table in bounds.items() if isinstance(bounds, dict) else ():
            name = f'"{knob}"' if "." in knob else knob
            head = f"[targets.bounds.{name}{target_suffix(document, index)}]"
            if knob.partition(".")[0] not in KNOBS.keys() | FLAGS | {SERVERS}:
                yield f"{head}: unknown knob{suggest_name(knob, KNOBS)}"
            elif knob in MODEL_KNOBS:
                yield f"{head}: write [targets.upgrades] {MODEL_KNOBS[knob]} instead: only admins change it"
            elif isinstance(table, dict) and knob != SERVERS and not tunable(knob) and not _has_values(table):
                yield (
                    f"{head}: flettner does not change {knob} unless its values are named:"
                    " give `allowed`, or min and max"
                )


def find_unknown_anchors(tables: FileTable) -> Iterator[str]:
    """Find destinations of the journal's anchors that do not exist."""
    destinations = {LOG, SYSLOG, *(table.name or table.kind for table in tables.notify)}
    for name in tables.agent.audit.anchor.to:
        if name not in destinations:
            yield (
                f"[agent.audit.anchor] to: {quote(name)} is neither `log` nor `syslog` nor the name of a"
                f" [[notify]]{suggest_name(name, destinations)}"
            )


def _has_values(table: Mapping[str, object]) -> bool:
    return any(table.get(key) not in (None, ()) for key in ("allowed", "min", "max"))


def _targets(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    targets = document.get("targets")
    return [t if isinstance(t, dict) else {} for t in targets] if isinstance(targets, tuple) else []


def _listen(table: object, default: Address) -> Address | None:
    """Return the address of a target's proxy; None where its kind has no such default."""
    if not isinstance(table, dict):
        return default
    if "listen" not in table:
        return default if table.get("kind", DEFAULT_TRAFFIC) == DEFAULT_TRAFFIC else None
    return _address(table["listen"])


def _address(value: object) -> Address | None:
    """Return the address; None if it is invalid, which is reported elsewhere."""
    with suppress(ValueError):
        return address(value)
    return None


def _api_addresses(table: object) -> tuple[Address, ...]:
    """Return the API's TCP addresses; none if they are invalid, which is reported elsewhere."""
    try:
        listed = listeners(table["listen"]) if isinstance(table, dict) and "listen" in table else (SOCKET,)
    except ValueError:
        return ()
    return tuple(listener for listener in listed if isinstance(listener, Address))


def _same_port(first: Address, second: Address) -> bool:
    same_host = first.host == second.host or first.is_wildcard or second.is_wildcard
    return same_host and first.port == second.port != 0


def _describe_error(details: ErrorDetails, document: Mapping[str, object]) -> str:
    path = list(details["loc"])
    if details["type"] == "extra_forbidden":
        keys = _find_table(FileTable, path[:-1]).model_fields
        return f"{_format_path(path, document)}: unknown key{suggest_name(str(path[-1]), keys)}"
    if details["type"] == "wrong_key":
        return f"{_format_path([*path, details['ctx']['key']], document)}: {details['ctx']['problem']}"
    return f"{_format_path(path, document)}: {describe_problem(details)}"


def _find_table(annotation: Any, path: Sequence[str | int]) -> type[BaseModel]:  # noqa: ANN401 - a type form
    """Find the table at a path, through optional tables, lists and tables of tables."""
    for part in path:
        model = _find_model(annotation)
        by_name = annotation if annotation is model else None
        annotation = (
            model.model_fields[str(part)].annotation if by_name or _is_optional(annotation) else model
        )
    return _find_model(annotation)


def _is_optional(annotation: Any) -> bool:  # noqa: ANN401 - a type form
    return type(None) in get_args(annotation)


def _find_model(annotation: Any) -> type[BaseModel]:  # noqa: ANN401 - a type form
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_find_model(arg) for arg in get_args(annotation) if arg not in (str, type(None), ...))


def _format_path(path: Sequence[str | int], document: Mapping[str, object]) -> str:
    """Format a path as `[table] key.key[index]`."""
    if path[0] == "targets":
        return _format_target_path(path[1:], document)
    if path[0] == "notify":
        return " ".join(filter(None, ("[[notify]]", _format_keys(path[2:]))))
    depth = _DEPTHS.get(str(path[0]), 0)
    table, keys = path[:depth], path[depth:]
    head = f"[{'.'.join(map(str, table))}]" if table else ""
    return " ".join(filter(None, (head, _format_keys(keys))))


def _format_target_path(path: Sequence[str | int], document: Mapping[str, object]) -> str:
    if not path:
        return "[[targets]]"
    of, rest = target_suffix(document, int(path[0])), path[1:]
    depth = _DEPTHS.get(f"targets.{rest[0]}", 0) if rest else 0
    table = ".".join(("targets", *map(str, rest[:depth])))
    head = f"[{table}{of}]" if depth else f"[[{table}{of}]]"
    return " ".join(filter(None, (head, _format_keys(rest[depth:]))))


def _format_keys(keys: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def find_public_url_problems(needed_by: Sequence[str], api: ApiTable) -> Iterator[str]:
    """Find why people could not come to the console's URL. `needed_by`: the options that send them there."""
    if not needed_by:
        return
    why = needed_by[0]
    if api.public_url is None:
        yield f"[api] public_url: is required with {why}, which sends people there"
        return
    url = urlsplit(api.public_url)
    host = str(url.hostname)
    if url.path:
        yield f"[api] public_url: must have no path with {why}: the API is at the root of its host"
    if url.scheme != "https" and host not in LOOPBACK:
        yield f"[api] public_url: must begin with https:// with {why}: what it sends is a secret"
    if not {host, f"[{host}]"} & {*api.hosts, *LOOPBACK, *_listening_hosts(api)}:
        yield f"[api] hosts: {host} is missing, where public_url sends people with {why}"


def _listening_hosts(api: ApiTable) -> Iterator[str]:
    return (listener.url_host for listener in api.listen if isinstance(listener, Address))
