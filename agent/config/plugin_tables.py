"""Builds the configured plugins from raw tables, so that their errors appear together with all others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.agent.plugins.option_errors import suggest_name

SENSORS = ("vllm_metrics", "proxy_requests")
"""On by default; the second one where the proxy counts requests."""
POLICIES = (
    "health",
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
    "layout",
    "spare_memory",
    "spare_servers",
    "static_findings",
)
"""Enabled unless the file has `NAME = false`."""

BuildPlugin = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPlugin:
    """A configured plugin, built. Its kind determines the port that it satisfies."""

    name: str
    options: Mapping[str, Any]
    plugin: Any


@dataclass(frozen=True, slots=True)
class PluginBuilder:
    """Builds plugins from raw tables and collects their errors; skips values that are not tables."""

    build: BuildPlugin
    problems: list[str] = field(default_factory=list)

    def build_actuator(
        self, table: object, name: str, default: Mapping[str, object], own: Iterable[str]
    ) -> ConfiguredPlugin | None:
        """Build the actuator that the table's `kind` names; `own`: keys that are not its options."""
        values = {**default, **table} if isinstance(table, dict) else dict(default)
        kind = values.get("kind")
        if not isinstance(kind, str):
            return None
        options = {key: value for key, value in values.items() if key not in own}
        return self._build_plugin("actuators", kind, options, f"[{name}]")

    def build_sensors(
        self,
        table: object,
        name: str,
        engine: ConfiguredPlugin | None,
        traffic: ConfiguredPlugin | None = None,
    ) -> tuple[ConfiguredPlugin, ...]:
        """Build the default sensors, those of the engine and the traffic, and those that the file names."""
        tables = dict(table) if isinstance(table, dict) else {}
        engine_sensors: Mapping[str, Iterable[str]] = getattr(engine.plugin, "sensors", {}) if engine else {}
        common = engine.options if engine else {}
        for sensor, shared in engine_sensors.items():
            _inherit(tables, sensor, {key: common[key] for key in shared if key in common})
        traffic_sensors = getattr(traffic.plugin, "sensor_options", {}) if traffic else {}
        for sensor, values in traffic_sensors.items():
            _inherit(tables, sensor, values)
        counted = traffic is None or getattr(traffic.plugin, "counts_requests", True)
        return self.build_all("sensors", tables, name, SENSORS if counted else SENSORS[:1])

    def build_all(
        self, kind: str, table: object, name: str, default: tuple[str, ...]
    ) -> tuple[ConfiguredPlugin, ...]:
        """Build the defaults that the file does not name, then the named ones in its order."""
        tables = table if isinstance(table, dict) else {}
        enabled = {**{plugin: True for plugin in default if plugin not in tables}, **tables}
        path, of, target = name.partition(" of ")
        built = (
            self._build_plugin(
                kind, plugin, {} if options is True else options, f"[{path}.{plugin}{of}{target}]"
            )
            for plugin, options in enabled.items()
            if options is True or isinstance(options, dict)
        )
        return tuple(plugin for plugin in built if plugin is not None)

    def refuse_unknown_switches(self, table: object, name: str, known: Sequence[str]) -> None:
        """Collect each `NAME = false` without a plugin of that name: the one that was meant would stay on."""
        for plugin, options in (table if isinstance(table, dict) else {}).items():
            if options is False and plugin not in known:
                why = f"false turns nothing off: there is no such plugin{suggest_name(plugin, known)}"
                self.problems.append(f"[{name}] {plugin}: {why}")

    def _build_plugin(
        self, kind: str, name: str, options: dict[str, Any], table: str
    ) -> ConfiguredPlugin | None:
        try:
            return ConfiguredPlugin(
                name=name, options=options, plugin=self.build(kind, name, options, table=table[1:-1])
            )
        except ConfigError as error:
            self.problems.extend(str(error).splitlines())
            return None


def _inherit(tables: dict[str, Any], sensor: str, values: Mapping[str, Any]) -> None:
    """Enable the sensor with these options, unless the file disables it or sets them."""
    own = tables.get(sensor, {})
    if own is True or isinstance(own, dict):
        tables[sensor] = {**values} | ({} if own is True else own)
