"""Loads the TOML config file, and reports every error with its key."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from flettner.agent.audit.anchors import AnchorOptions
from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.config.changes import flatten
from flettner.agent.config.convert import BOUNDS, bound, limits, plan, quality, slo, upgrades
from flettner.agent.config.cross_checks import (
    describe_errors,
    find_clashes,
    find_disagreements,
    find_public_url_problems,
    find_shared_servers,
    find_unknown_anchors,
    find_unknown_bounds,
    target_suffix,
)
from flettner.agent.config.git import GitOptions, build_git
from flettner.agent.config.listen import Certificate, ListenOptions
from flettner.agent.config.notify import Receiver, build_receivers, resolve_secret_files
from flettner.agent.config.plugin_tables import POLICIES, BuildPlugin, ConfiguredPlugin, PluginBuilder
from flettner.agent.config.tables import DEFAULT_TRAFFIC, ApiTable, FileTable, TargetTable
from flettner.agent.config.windows import build_schedule, build_windows
from flettner.agent.config.without_effect import find_keys_without_effect
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Approvers, Bound, Mode, Plan, Slo
from flettner.agent.domain.upgrade import UpgradeLimits
from flettner.agent.domain.windows import Windows
from flettner.agent.plugins import loader, third_party
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from flettner.primitives.address import Address
from flettner.primitives.files import read_file
from flettner.vllm_facts.values import Knob

LARGEST_FILE = 2**20
TargetPlugins = tuple[ConfiguredPlugin | None, ConfiguredPlugin | None, tuple[ConfiguredPlugin, ...]]
"""The engine, the traffic and the sensors of a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    profile: str  # the kind of traffic; empty: not said
    slo: Slo
    engine: ConfiguredPlugin
    strategy: Literal["auto", "surge", "replace", "swap", "hot"]
    restart_after_s: float | None
    traffic: ConfiguredPlugin
    listen: Address  # the proxy's address for clients
    sensors: tuple[ConfiguredPlugin, ...]
    bounds: Mapping[Knob, Bound]
    plan: Plan
    cooldown_s: float
    suggestion_ttl_s: float
    changes_per_day: int
    hot_changes_per_day: int
    quality: GoldenPromptOptions
    windows: Windows = field(default_factory=Windows)
    upgrades: UpgradeLimits = field(default_factory=UpgradeLimits)
    gpu_hour: float | None = None  # price of a GPU for an hour
    cards: Mapping[str, float] = field(default_factory=dict)  # the same of other cards, by name
    saves: bool = False  # whether fewer servers or GPUs may be suggested
    git: GitOptions | None = None
    gpu: str = ""  # its model, or NO_GPU; empty: as the sensors see it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    state_dir: Path
    mode: Mode
    learn: bool
    approval: Approvers
    api: ListenOptions
    targets: tuple[Target, ...]
    policies: tuple[ConfiguredPlugin, ...]  # in evaluation order
    audit: RetentionLimits = field(default_factory=RetentionLimits)
    anchor: AnchorOptions = field(default_factory=AnchorOptions)
    notify: tuple[Receiver, ...] = ()
    authenticators: tuple[ConfiguredPlugin, ...] = ()
    otlp_endpoint: str = ""  # of a collector, for traces of rollouts; empty: none
    public_url: str = ""  # of the console, for links in notices; empty: no links
    values: Mapping[str, object] = field(default_factory=dict)  # of each key, to compare with another file


def load_config(path: Path, *, build: BuildPlugin = loader.build_plugin) -> Config:
    """Load and validate the file. ConfigError lists every problem, one a line."""
    try:
        content = read_file(path, LARGEST_FILE)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return parse_config(content.decode("utf-8"), here=path.absolute().parent, build=build)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}:\n{error}") from None


def parse_config(text: str, *, here: Path, build: BuildPlugin = loader.build_plugin) -> Config:
    """Parse a TOML text. `here`: the base of its relative paths."""
    try:
        return build_config(tomllib.loads(text), here=here, build=build)
    except RecursionError:
        raise ConfigError("not a flettner config: it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"not TOML: {error}") from error


def build_config(document: dict[str, Any], *, here: Path, build: BuildPlugin = loader.build_plugin) -> Config:
    """Build the config of the document of a TOML file. Raises ConfigError."""
    return _build_config(loader.freeze_lists(document), here, build)


def find_policies_dir(path: Path) -> Path | None:
    """Read `policies_dir` from the file, even if the rest of it is invalid."""
    try:
        document = tomllib.loads(read_file(path, LARGEST_FILE).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return _find_policies_dir(document, path.absolute().parent)


def _build_config(document: dict[str, Any], here: Path, build: BuildPlugin) -> Config:
    problems: list[str] = []
    tables = None
    try:
        tables = FileTable.model_validate(document)
    except ValidationError as error:
        problems += describe_errors(error, document)
    problems += find_clashes(document)
    problems += find_unknown_bounds(document)
    builder = PluginBuilder(build)
    policies = _build_policies(document, here, builder)
    authenticators = _build_authenticators(document, here, builder)
    raw_targets = document.get("targets")
    plugins = [
        _build_parts(builder, target, target_suffix(document, index))
        for index, target in enumerate(raw_targets if isinstance(raw_targets, tuple) else ())
        if isinstance(target, dict)
    ]
    keys = {problem.split(": ")[0] for problem in problems}
    problems += (problem for problem in builder.problems if problem.split(": ")[0] not in keys)
    qualities = list(_quality_options(tables.targets if tables else (), document, here, problems))
    gits = list(_git_options(tables.targets if tables else (), document, here, build, problems))
    receivers: tuple[Receiver, ...] = ()
    try:
        receivers = build_receivers(tables.notify if tables else (), here, build)
    except ConfigError as error:
        problems += str(error).splitlines()
    problems += find_unknown_anchors(tables) if tables else ()
    problems += _find_window_problems(tables, document) if tables else ()
    problems += find_keys_without_effect(tables, document) if tables else ()
    if problems or tables is None:
        raise ConfigError("\n".join(problems))
    proxies = [(table.name, traffic) for table, (_, traffic, _) in zip(tables.targets, plugins, strict=True)]
    engines = [(table.name, engine) for table, (engine, _, _) in zip(tables.targets, plugins, strict=True)]
    disagreements = [*find_disagreements(proxies, document), *find_shared_servers(engines, document)]
    disagreements += find_public_url_problems(_need_public_url(authenticators, receivers), tables.api)
    if contradictions := [*_find_contradictions(tables.targets, document, plugins), *disagreements]:
        raise ConfigError("\n".join(contradictions))
    return Config(
        state_dir=_resolve_path(here, tables.agent.state_dir),
        mode=tables.agent.mode,
        learn=tables.agent.learn,
        otlp_endpoint=tables.agent.otlp_endpoint or "",
        approval=tables.agent.approval,
        api=_listen_options(tables.api, here),
        targets=tuple(
            replace(
                _build_target(target, options, build_windows(tables.windows, target.windows), *built), git=git
            )
            for target, options, built, git in zip(tables.targets, qualities, plugins, gits, strict=True)
        ),
        policies=policies,
        audit=limits(tables.agent.audit),
        anchor=AnchorOptions(every_s=tables.agent.audit.anchor.every, to=tables.agent.audit.anchor.to),
        notify=receivers,
        authenticators=authenticators,
        public_url=tables.api.public_url or "",
        values=flatten(tables),
    )


def _listen_options(table: ApiTable, here: Path) -> ListenOptions:
    certificate = None
    if table.tls_cert is not None and table.tls_key is not None:
        certificate = Certificate(
            chain=_resolve_path(here, table.tls_cert),
            key=_resolve_path(here, table.tls_key),
            client_ca=_resolve_path(here, table.tls_client_ca) if table.tls_client_ca else None,
        )
    return ListenOptions(
        listen=table.listen,
        hosts=table.hosts,
        trusted_proxies=table.trusted_proxies,
        health=table.health,
        tokens_file=_resolve_path(here, table.tokens_file) if table.tokens_file else None,
        certificate=certificate,
        users=table.users,
        groups=table.groups,
        certificates=table.certificates,
    )


def _build_policies(
    document: Mapping[str, Any], here: Path, builder: PluginBuilder
) -> tuple[ConfiguredPlugin, ...]:
    """Build the shipped policies, then those of `policies_dir`; both are enabled by default."""
    folder = _find_policies_dir(document, here)
    table = document.get("policies")
    own: tuple[str, ...] = ()
    try:
        own = tuple(third_party.policies_in_folder(folder))
        loader.third_party_policies("policies", folder)
    except ConfigError as error:
        builder.problems.append(f"[agent] policies_dir: {error}" if folder else f"[policies] {error}")
        return ()
    if folder:
        builder = replace(builder, build=partial(builder.build, folder=folder))
    builder.refuse_unknown_switches(table, "policies", loader.list_plugins("policies", folder=folder))
    return builder.build_all("policies", table, "policies", (*POLICIES, *own))


def _build_authenticators(
    document: Mapping[str, Any], here: Path, builder: PluginBuilder
) -> tuple[ConfiguredPlugin, ...]:
    api = document.get("api")
    tables = api.get("authenticators") if isinstance(api, dict) else None
    builder.refuse_unknown_switches(tables, "api.authenticators", loader.list_plugins("authenticators"))
    resolved: dict[str, object] = {}
    for name, options in (tables if isinstance(tables, dict) else {}).items():
        try:
            resolved[name] = resolve_secret_files(options, here)
        except ConfigError as error:
            builder.problems.append(f"[api.authenticators.{name}] {error}")
    return builder.build_all("authenticators", resolved, "api.authenticators", ())


def _find_policies_dir(document: Mapping[str, Any], here: Path) -> Path | None:
    """Read `policies_dir` from the parsed file."""
    table = document.get("agent")
    value = table.get("policies_dir") if isinstance(table, dict) else None
    return _resolve_path(here, value) if isinstance(value, str) and value else None


def _build_parts(builder: PluginBuilder, target: dict[str, Any], of: str) -> TargetPlugins:
    traffic = {"kind": DEFAULT_TRAFFIC}
    engine = builder.build_actuator(
        target.get("engine"), f"targets.engine{of}", {}, ("kind", "strategy", "restart_after")
    )
    proxy = builder.build_actuator(target.get("traffic"), f"targets.traffic{of}", traffic, ("kind",))
    sensors = target.get("sensors")
    known = (*loader.list_plugins("sensors"), *getattr(engine.plugin if engine else None, "sensors", ()))
    builder.refuse_unknown_switches(sensors, f"targets.sensors{of}", known)
    return engine, proxy, builder.build_sensors(sensors, f"targets.sensors{of}", engine, proxy)


def _need_public_url(authenticators: Sequence[ConfiguredPlugin], receivers: Sequence[Receiver]) -> list[str]:
    """The options by which people are sent to the console's URL."""
    signing_in = [each.name for each in authenticators if getattr(each.plugin, "offers_sign_in", False)]
    linking = [each.name for each in receivers if getattr(each.plugin, "needs_public_url", False)]
    return [
        *(f"[api.authenticators.{name}] client_secret_file" for name in signing_in),
        *(f"[[notify]] {name}: people" for name in linking),
    ]


def _find_contradictions(
    targets: tuple[TargetTable, ...], document: Mapping[str, Any], plugins: Sequence[TargetPlugins]
) -> Iterator[str]:
    """Find options of sensors that contradict the target's promises."""
    for index, (target, (_, _, sensors)) in enumerate(zip(targets, plugins, strict=True)):
        for sensor in sensors:
            find = getattr(sensor.plugin, "slo_problems", lambda _: ())
            table = f"[targets.sensors.{sensor.name}{target_suffix(document, index)}]"
            yield from (f"{table} {problem}" for problem in find(slo(target.slo)))


def _quality_options(
    targets: tuple[TargetTable, ...], document: Mapping[str, Any], here: Path, problems: list[str]
) -> Iterator[GoldenPromptOptions]:
    for index, target in enumerate(targets):
        files = (target.quality.prompts, target.quality.prefixes)
        prompts, prefixes = (_resolve_path(here, file) if file else None for file in files)
        try:
            yield quality(target.quality, prompts, prefixes)
        except ConfigError as error:
            problems.append(f"[targets.quality{target_suffix(document, index)}] {error}")


def _git_options(
    targets: tuple[TargetTable, ...],
    document: Mapping[str, Any],
    here: Path,
    build: BuildPlugin,
    problems: list[str],
) -> Iterator[GitOptions | None]:
    for index, target in enumerate(targets):
        where = f"targets.git{target_suffix(document, index)}"
        try:
            yield build_git(target.git, here, build, where) if target.git else None
        except ConfigError as error:
            problems += str(error).splitlines()


def _find_window_problems(tables: FileTable, document: Mapping[str, Any]) -> Iterator[str]:
    heads = [
        "[windows]",
        *(f"[targets.windows{target_suffix(document, i)}]" for i in range(len(tables.targets))),
    ]
    for head, table in zip(heads, (tables.windows, *(t.windows for t in tables.targets)), strict=True):
        try:
            build_schedule(table)
        except ValueError as error:
            yield f"{head} {error}"


def _build_target(
    table: TargetTable,
    options: GoldenPromptOptions,
    windows: Windows,
    engine: ConfiguredPlugin | None,
    traffic: ConfiguredPlugin | None,
    sensors: tuple[ConfiguredPlugin, ...],
) -> Target:
    if engine is None or traffic is None:
        raise ConfigError(f"[[targets]] {table.name}: has no [targets.engine] or no [targets.traffic]")
    return Target(
        name=table.name,
        profile=table.profile or "",
        slo=slo(table.slo),
        engine=engine,
        strategy=table.engine.strategy,
        restart_after_s=table.engine.restart_after,
        traffic=traffic,
        listen=table.traffic.listen,
        sensors=sensors,
        bounds={**BOUNDS, **{knob: bound(knob, given) for knob, given in table.bounds.items()}},
        plan=plan(table.rollout),
        cooldown_s=table.rollout.cooldown,
        suggestion_ttl_s=table.rollout.suggestion_ttl,
        changes_per_day=table.rollout.changes_per_day,
        hot_changes_per_day=table.rollout.hot_changes_per_day,
        quality=options,
        windows=windows,
        upgrades=upgrades(table.upgrades),
        gpu_hour=table.cost.gpu_hour,
        cards=table.cost.cards,
        saves=table.cost.save,
        gpu=table.gpu or "",
    )


def _resolve_path(here: Path, path: str) -> Path:
    """Resolve a path relative to the config file; `~` is the home of the user that runs flettner."""
    try:
        return here / Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}") from error
