"""`[[notify]]`: the receivers of notices and their minimum severity; kinds are modules of `notifiers/`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flettner.agent.config.plugin_tables import BuildPlugin
from flettner.agent.config.tables import NotifyTable
from flettner.agent.domain.errors import ConfigError
from flettner.agent.notify.rules import NoticeSeverity, Notifier
from flettner.agent.plugins import loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    name: str
    kind: str
    severity: NoticeSeverity
    plugin: Notifier


def build_receivers(
    tables: tuple[NotifyTable, ...], here: Path, build: BuildPlugin = loader.build_plugin
) -> tuple[Receiver, ...]:
    """Build the receivers. ConfigError lists every problem, one a line."""
    built = []
    names = [table.name or table.kind for table in tables]
    problems = [
        f"[[notify]] name: {name} is the name of {names.count(name)} receivers: give each its own name"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for table, name in zip(tables, names, strict=True):
        try:
            options = resolve_secret_files(table.model_extra or {}, here)
            plugin: Any = build("notifiers", table.kind, options, table=f"notify {name}")
        except ConfigError as error:
            problems.extend(str(error).splitlines())
        else:
            built.append(Receiver(name=name, kind=table.kind, severity=table.severity, plugin=plugin))
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(built)


def resolve_secret_files(options: object, here: Path) -> Any:  # noqa: ANN401 - as the file has them
    """Resolve every `..._file` of a plugin's table. Raises ConfigError."""
    if not isinstance(options, Mapping):
        return options
    return {key: resolve_secret_file(key, value, here) for key, value in options.items()}


def resolve_secret_file(key: str, value: object, here: Path) -> object:
    """Resolve a `..._file`: a systemd credential (LoadCredential=NAME:...), else relative to the config."""
    if not key.endswith("_file") or not isinstance(value, str) or not value:
        return value
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY") or "/nonexistent") / value
    try:
        return str(credential if credential.is_file() else here / Path(value).expanduser())
    except RuntimeError as error:
        raise ConfigError(f"{value}: {error}") from error
