"""Finds and builds the plugins that the config names; a plugin module ends with `plugin = TheClass`."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from flettner.agent.domain.errors import ConfigError
from flettner.agent.plugins.option_errors import describe_problem, suggest_name
from flettner.agent.plugins.third_party import GuardedPolicy, ThirdPartyPolicy, find_policies, name_clash


def list_plugins(kind: str, *, folder: Path | None = None) -> tuple[str, ...]:
    """List the plugins of a kind, which is the name of their folder, without importing them.

    Policies include third-party ones of installed packages and of `folder`. ConfigError if names clash.
    """
    return tuple(sorted((*shipped_plugins(kind), *third_party_policies(kind, folder))))


def third_party_policies(kind: str, folder: Path | None = None) -> dict[str, ThirdPartyPolicy]:
    """Find the plugins that flettner does not ship, by name. ConfigError if two plugins share a name."""
    if kind != "policies":
        return {}
    policies = find_policies(folder)
    for name in sorted(policies.keys() & shipped_plugins(kind).keys()):
        raise ConfigError(name_clash(policies[name], "flettner"))
    return policies


def shipped_plugins(kind: str) -> dict[str, str]:
    """Find the plugins that flettner ships: name to module, `kind/name.py` or `kind/name/plugin.py`.

    A package without a `plugin.py` is a library of the other plugins.
    """
    plugins = {}
    for folder in map(Path, import_module(f"flettner.{kind}").__path__):
        for module in iter_modules([str(folder)]):
            if not module.ispkg:
                plugins[module.name] = f"flettner.{kind}.{module.name}"
            elif (folder / module.name / "plugin.py").is_file():
                plugins[module.name] = f"flettner.{kind}.{module.name}.plugin"
    return plugins


def load_plugin(kind: str, name: str, *, table: str = "", folder: Path | None = None) -> type:
    """Import the plugin class of `kind`/`name`.py. `table`: its config table, for error texts."""
    table = table or f"{kind}.{name}"
    shipped = shipped_plugins(kind)
    if name not in shipped:
        if policy := third_party_policies(kind, folder).get(name):
            return _load_third_party(policy, table)
        names = list_plugins(kind, folder=folder)
        raise ConfigError(f"[{table}] {name}: no such plugin {kind}/{name}.py{suggest_name(name, names)}")
    try:
        plugin = import_module(shipped[name]).plugin
    except ImportError as error:
        raise ConfigError(f"[{table}] {name}: {kind}/{name}.py cannot be loaded: {error}") from error
    if not isinstance(plugin, type) or not is_dataclass(plugin):
        raise ConfigError(f"[{table}] {name}: the plugin of {kind}/{name}.py is not a dataclass")
    return plugin


def build_plugin(
    kind: str, name: str, options: Mapping[str, Any], *, table: str = "", folder: Path | None = None
) -> object:
    """Build the plugin `kind`/`name`.py with its options. ConfigError lists every bad option, one a line."""
    table = table or f"{kind}.{name}"
    plugin = load_plugin(kind, name, table=table, folder=folder)
    parameters = options_of(plugin)
    given = {key: freeze_lists(value) for key, value in options.items()}
    problems = [
        f"[{table}] {key}: unknown key{suggest_name(key, parameters)}"
        for key in given
        if key not in parameters
    ]
    problems += [
        f"[{table}] {key}: missing; it is required"
        for key, option in parameters.items()
        if key not in given and option.default is MISSING and option.default_factory is MISSING
    ]
    hints = get_type_hints(plugin)
    for key in parameters.keys() & given.keys():
        problems += (f"[{table}] {key}{error}" for error in _find_type_errors(key, hints[key], given[key]))
    if problems:
        raise ConfigError("\n".join(sorted(problems)))
    try:
        built: object = plugin(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[{table}]: {error}") from error
    return GuardedPolicy(name, built) if kind == "policies" and name not in shipped_plugins(kind) else built


def options_of(plugin: type) -> dict[str, Field[Any]]:
    """Return the fields that are options of the plugin's config table, by name."""
    return {field.name: field for field in fields(plugin) if field.init and not field.name.startswith("_")}


def _load_third_party(policy: ThirdPartyPolicy, table: str) -> type:
    """Import the class and check that it has the form of a policy."""
    try:
        plugin = policy.load()
    except ConfigError as error:
        raise ConfigError(f"[{table}] {policy.name}: {error}") from error
    if not isinstance(plugin, type) or not is_dataclass(plugin):
        raise ConfigError(f"[{table}] {policy.name}: the plugin of {policy.origin} is not a dataclass")
    if not callable(getattr(plugin, "propose", None)):
        raise ConfigError(
            f"[{table}] {policy.name}: {plugin.__name__} of {policy.origin} has no "
            "`propose(self, reading, context)`"
        )
    return plugin


def freeze_lists(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """Return a TOML value with tuples instead of lists."""
    match value:
        case list() | tuple():
            return tuple(freeze_lists(item) for item in value)
        case Mapping():
            return {key: freeze_lists(item) for key, item in value.items()}
        case _:
            return value


def _find_type_errors(key: str, annotation: Any, value: object) -> Iterator[str]:  # noqa: ANN401 - a type form
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in details["loc"])
            yield f"{where}: {describe_problem(details, key)}"


def read_source(module: str) -> str:
    """Read the source text of a module without importing it; empty if it has none."""
    spec = find_spec(module)
    get_source = getattr(spec.loader, "get_source", None) if spec else None
    return (get_source(module) or "") if get_source else ""
