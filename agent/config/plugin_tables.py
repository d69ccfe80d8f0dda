"""The plugins that a config file asks for, built with their options, whatever else is wrong in the file."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.domain.errors import ConfigError

SENSORS = ("vllm_metrics", "proxy_requests")
POLICIES = (
    "thermal",
    "memory_share",
    "admission",
    "prefill_budget",
    "long_prompts",
    "graphs",
    "prefix_cache",
    "host_bound",
    "offloading",
    "context_length",
    "speculation",
    "queue_notes",
)
"""On unless the file says `NAME = false`."""

BuildPlugin = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPlugin:
    """A plugin as the config asks for it, built. What it can do is known to who asked for it by its kind."""

    name: str
    options: Mapping[str, Any]
    plugin: Any


@dataclass(frozen=True, slots=True)
class PluginBuilder:
    """Builds parts from raw tables and collects what the plugins complain about; skips what is no table."""

    build: BuildPlugin
    problems: list[str] = field(default_factory=list)

    def one(
        self, table: object, name: str, default: Mapping[str, object], own: Iterable[str]
    ) -> ConfiguredPlugin | None:
        """The actuator that the table's `kind` names; `own`: the keys that are not its options."""
        asked = {**default, **table} if isinstance(table, dict) else dict(default)
        kind = asked.get("kind")
        if not isinstance(kind, str):
            return None
        options = {key: value for key, value in asked.items() if key not in own}
        return self._part("actuators", kind, options, f"[{name}]")

    def sensors(
        self, table: object, name: str, engine: ConfiguredPlugin | None
    ) -> tuple[ConfiguredPlugin, ...]:
        """Those that are on by default, those that the engine brings along, and those that the file names."""
        asked = dict(table) if isinstance(table, dict) else {}
        brought: Mapping[str, Iterable[str]] = getattr(engine.plugin, "sensors", {}) if engine else {}
        common = engine.options if engine else {}
        for sensor, shared in brought.items():
            own = asked.get(sensor, {})
            if own is True or isinstance(own, dict):
                given = {} if own is True else own
                asked[sensor] = {key: common[key] for key in shared if key in common} | given
        return self.many("sensors", asked, name, SENSORS)

    def many(
        self, kind: str, table: object, name: str, default: tuple[str, ...]
    ) -> tuple[ConfiguredPlugin, ...]:
        """The defaults that the file does not name, then those that it does, in its order."""
        asked = table if isinstance(table, dict) else {}
        wanted = {**{plugin: True for plugin in default if plugin not in asked}, **asked}
        path, of, target = name.partition(" of ")
        parts = (
            self._part(kind, plugin, {} if options is True else options, f"[{path}.{plugin}{of}{target}]")
            for plugin, options in wanted.items()
            if options is True or isinstance(options, dict)
        )
        return tuple(part for part in parts if part is not None)

    def _part(self, kind: str, name: str, options: dict[str, Any], table: str) -> ConfiguredPlugin | None:
        try:
            return ConfiguredPlugin(
                name=name, options=options, plugin=self.build(kind, name, options, table=table[1:-1])
            )
        except ConfigError as error:
            self.problems.extend(str(error).splitlines())
            return None
