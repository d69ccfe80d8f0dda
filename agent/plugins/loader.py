"""Find and build the plugins that the config names; a plugin module ends in `plugin = TheClass`."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agent.domain.errors import ConfigError
from agent.plugins.option_errors import meant, problem
from agent.plugins.third_party import GuardedPolicy, ThirdPartyPolicy, clash, outsiders


def names(kind: str, *, folder: Path | None = None) -> tuple[str, ...]:
    """The plugins there are of a kind ("policies", "sensors", "actuators"), found without importing them.

    Policies may be others' too: of installed packages, and of `folder`. ConfigError when names clash.
    """
    return tuple(sorted((*own_plugins(kind), *strangers(kind, folder))))


def strangers(kind: str, folder: Path | None = None) -> dict[str, ThirdPartyPolicy]:
    """Those that are not ours, by name. ConfigError when one has a name of ours, or of another."""
    if kind != "policies":
        return {}
    found, ours = outsiders(folder), own_plugins(kind).keys()
    for name in sorted(found.keys() & ours):
        raise ConfigError(clash(found[name], "trimtab"))
    return found


def own_plugins(kind: str) -> dict[str, str]:
    """The plugins that trimtab ships, by name, each with its module: `kind/name.py` or `kind/name/plugin.py`.

    A package without a `plugin.py` is a library of its neighbours.
    """
    found = {}
    for folder in map(Path, import_module(kind).__path__):
        for module in iter_modules([str(folder)]):
            if not module.ispkg:
                found[module.name] = f"{kind}.{module.name}"
            elif (folder / module.name / "plugin.py").is_file():
                found[module.name] = f"{kind}.{module.name}.plugin"
    return found


def load(kind: str, name: str, *, table: str = "", folder: Path | None = None) -> type:
    """The class that `kind`/`name`.py gives as its plugin. `table` is where the config names it."""
    table = table or f"{kind}.{name}"
    own = own_plugins(kind)
    if name not in own:
        if stranger := strangers(kind, folder).get(name):
            return _theirs(stranger, table)
        known = names(kind, folder=folder)
        raise ConfigError(f"[{table}] {name}: no such plugin {kind}/{name}.py{meant(name, known)}")
    try:
        plugin = import_module(own[name]).plugin
    except ImportError as error:
        raise ConfigError(f"[{table}] {name}: {kind}/{name}.py cannot be loaded: {error}") from error
    if not isinstance(plugin, type) or not is_dataclass(plugin):
        raise ConfigError(f"[{table}] {name}: the plugin of {kind}/{name}.py is not a dataclass")
    return plugin


def build(
    kind: str, name: str, options: Mapping[str, Any], *, table: str = "", folder: Path | None = None
) -> object:
    """Build `kind`/`name`.py with its options. ConfigError names every bad option, one a line."""
    table = table or f"{kind}.{name}"
    plugin = load(kind, name, table=table, folder=folder)
    known = options_of(plugin)
    given = {key: frozen(value) for key, value in options.items()}
    problems = [f"[{table}] {key}: unknown key{meant(key, known)}" for key in given if key not in known]
    problems += [
        f"[{table}] {key}: missing; it is required"
        for key, option in known.items()
        if key not in given and option.default is MISSING and option.default_factory is MISSING
    ]
    hints = get_type_hints(plugin)
    for key in known.keys() & given.keys():
        problems += (f"[{table}] {key}{misfit}" for misfit in _misfits(key, hints[key], given[key]))
    if problems:
        raise ConfigError("\n".join(sorted(problems)))
    try:
        built: object = plugin(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[{table}]: {error}") from error
    return GuardedPolicy(name, built) if kind == "policies" and name not in own_plugins(kind) else built


def options_of(plugin: type) -> dict[str, Field[Any]]:
    """The fields that are options of its config table, by name."""
    return {field.name: field for field in fields(plugin) if field.init and not field.name.startswith("_")}


def _theirs(stranger: ThirdPartyPolicy, table: str) -> type:
    """Their class, held to the same form as ours."""
    try:
        plugin = stranger.load()
    except ConfigError as error:
        raise ConfigError(f"[{table}] {stranger.name}: {error}") from error
    if not isinstance(plugin, type) or not is_dataclass(plugin):
        raise ConfigError(f"[{table}] {stranger.name}: the plugin of {stranger.origin} is not a dataclass")
    if not callable(getattr(plugin, "propose", None)):
        raise ConfigError(
            f"[{table}] {stranger.name}: {plugin.__name__} of {stranger.origin} has no "
            "`propose(self, reading, context)`"
        )
    return plugin


def frozen(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """A TOML value with tuples for its lists."""
    match value:
        case list() | tuple():
            return tuple(frozen(item) for item in value)
        case Mapping():
            return {key: frozen(item) for key, item in value.items()}
        case _:
            return value


def _misfits(key: str, annotation: Any, value: object) -> Iterator[str]:  # noqa: ANN401 - a type form
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in details["loc"])
            yield f"{where}: {problem(details, key)}"


def source_of(module: str) -> str:
    """The text of a module, without importing it; empty where it has none."""
    spec = find_spec(module)
    get_source = getattr(spec.loader, "get_source", None) if spec else None
    return (get_source(module) or "") if get_source else ""
