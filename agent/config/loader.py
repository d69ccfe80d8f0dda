"""The operator's wishes: one TOML file, read whole, with every error in it named by its key."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from agent.audit.segments import RetentionLimits
from agent.config.convert import BOUNDS, bound, limits, plan, slo
from agent.config.cross_checks import clashes, complaints, of_target, unknown_knobs
from agent.config.golden import exam
from agent.config.listen import Certificate, ListenOptions
from agent.config.notify import Receiver, receivers
from agent.config.plugin_tables import POLICIES, BuildPlugin, ConfiguredPlugin, PluginBuilder
from agent.config.tables import DEFAULT_LISTEN, ApiTable, FileTable, TargetTable
from agent.domain.errors import ConfigError
from agent.domain.model import Bound, Mode, Plan, Slo
from agent.plugins import loader, third_party
from agent.quality.golden_prompts import GoldenPromptOptions
from vllm_facts.knobs import FLAGS, KNOBS, tunable
from vllm_facts.values import Knob

LARGEST_FILE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    profile: str
    slo: Slo
    engine: ConfiguredPlugin
    strategy: Literal["auto", "surge", "replace", "swap"]
    traffic: ConfiguredPlugin
    listen: str  # where the traffic part takes the clients' requests
    sensors: tuple[ConfiguredPlugin, ...]
    bounds: Mapping[Knob, Bound]
    plan: Plan
    cooldown_s: float
    suggestion_ttl_s: float
    changes_per_day: int
    exam: GoldenPromptOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    state_dir: Path
    mode: Mode
    door: ListenOptions
    targets: tuple[Target, ...]
    policies: tuple[ConfiguredPlugin, ...]  # in the order they are asked
    audit: RetentionLimits = field(default_factory=RetentionLimits)
    notify: tuple[Receiver, ...] = ()
    public_url: str = ""  # of the console, for links in notices; empty: not known


def load(path: Path, *, build: BuildPlugin = loader.build) -> Config:
    """Read and check the file. ConfigError lists every problem, one a line."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{path}: is larger than {LARGEST_FILE} bytes: this is not a trimtab config")
    try:
        return parse(content.decode("utf-8"), here=path.absolute().parent, build=build)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}:\n{error}") from None


def parse(text: str, *, here: Path, build: BuildPlugin = loader.build) -> Config:
    """The config of a TOML text. `here`: what its relative paths are relative to."""
    try:
        document = loader.freeze_lists(tomllib.loads(text))
        return _checked(document, here, build)
    except RecursionError:
        raise ConfigError("not a trimtab config: it is nested too deep") from None
    except ValueError as error:
        raise ConfigError(f"not TOML: {error}") from error


def policies_dir_of(path: Path) -> Path | None:
    """The folder of policies that the file names, whatever else is wrong in it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return _policies_dir(document, path.absolute().parent)


def _checked(document: dict[str, Any], here: Path, build: BuildPlugin) -> Config:
    problems: list[str] = []
    tables = None
    try:
        tables = FileTable.model_validate(document)
    except ValidationError as error:
        problems += complaints(error, document)
    problems += clashes(document)
    problems += unknown_knobs(document, KNOBS, FLAGS, tunable)
    workshop = PluginBuilder(build)
    policies = _policies(document, here, workshop)
    raw_targets = document.get("targets")
    parts = [
        _parts_of(workshop, target, of_target(document, index))
        for index, target in enumerate(raw_targets if isinstance(raw_targets, tuple) else ())
        if isinstance(target, dict)
    ]
    keys = {problem.split(": ")[0] for problem in problems}
    problems += (problem for problem in workshop.problems if problem.split(": ")[0] not in keys)
    exams = list(_exams(tables.targets if tables else (), document, here, problems))
    told: tuple[Receiver, ...] = ()
    try:
        told = receivers(tables.notify if tables else (), here, build)
    except ConfigError as error:
        problems += str(error).splitlines()
    if problems or tables is None:
        raise ConfigError("\n".join(problems))
    return Config(
        state_dir=_path(here, tables.agent.state_dir),
        mode=tables.agent.mode,
        door=_door(tables.api, here),
        targets=tuple(
            _target(target, wishes, *made)
            for target, wishes, made in zip(tables.targets, exams, parts, strict=True)
        ),
        policies=policies,
        audit=limits(tables.agent.audit),
        notify=told,
        public_url=tables.api.public_url or "",
    )


def _door(table: ApiTable, here: Path) -> ListenOptions:
    certificate = None
    if table.tls_cert is not None and table.tls_key is not None:
        certificate = Certificate(
            chain=_path(here, table.tls_cert),
            key=_path(here, table.tls_key),
            client_ca=_path(here, table.tls_client_ca) if table.tls_client_ca else None,
        )
    return ListenOptions(
        listen=table.listen,
        hosts=table.hosts,
        tokens_file=_path(here, table.tokens_file) if table.tokens_file else None,
        certificate=certificate,
        users=table.users,
        groups=table.groups,
        certificates=table.certificates,
    )


def _policies(
    document: Mapping[str, Any], here: Path, workshop: PluginBuilder
) -> tuple[ConfiguredPlugin, ...]:
    """Ours and, after them, those of the operator's folder: a file that lies there is on as ours are."""
    folder = _policies_dir(document, here)
    dropped: tuple[str, ...] = ()
    try:
        dropped = tuple(third_party.policies_in_folder(folder))
        loader.third_party_policies("policies", folder)
    except ConfigError as error:
        workshop.problems.append(f"[agent] policies_dir: {error}" if folder else f"[policies] {error}")
        return ()
    if folder:
        workshop = replace(workshop, build=partial(workshop.build, folder=folder))
    return workshop.many("policies", document.get("policies"), "policies", (*POLICIES, *dropped))


def _policies_dir(document: Mapping[str, Any], here: Path) -> Path | None:
    """The folder of policies that the file names."""
    table = document.get("agent")
    written = table.get("policies_dir") if isinstance(table, dict) else None
    return _path(here, written) if isinstance(written, str) and written else None


def _parts_of(
    workshop: PluginBuilder, target: dict[str, Any], of: str
) -> tuple[ConfiguredPlugin | None, ConfiguredPlugin | None, tuple[ConfiguredPlugin, ...]]:
    traffic = {"kind": "envoy", "listen": DEFAULT_LISTEN}
    engine = workshop.one(target.get("engine"), f"targets.engine{of}", {}, ("kind", "strategy"))
    return (
        engine,
        workshop.one(target.get("traffic"), f"targets.traffic{of}", traffic, ("kind",)),
        workshop.sensors(target.get("sensors"), f"targets.sensors{of}", engine),
    )


def _exams(
    targets: tuple[TargetTable, ...], document: Mapping[str, Any], here: Path, problems: list[str]
) -> Iterator[GoldenPromptOptions]:
    for index, target in enumerate(targets):
        written = target.quality.prompts
        try:
            yield exam(target.quality, _path(here, written) if written else None)
        except ConfigError as error:
            problems.append(f"[targets.quality{of_target(document, index)}] prompts: {error}")


def _target(
    table: TargetTable,
    wishes: GoldenPromptOptions,
    engine: ConfiguredPlugin | None,
    traffic: ConfiguredPlugin | None,
    sensors: tuple[ConfiguredPlugin, ...],
) -> Target:
    if engine is None or traffic is None:
        raise ConfigError(f"[[targets]] {table.name}: has no engine or no traffic part")
    return Target(
        name=table.name,
        profile=table.profile,
        slo=slo(table.slo),
        engine=engine,
        strategy=table.engine.strategy,
        traffic=traffic,
        listen=table.traffic.listen,
        sensors=sensors,
        bounds={**BOUNDS, **{knob: bound(knob, asked) for knob, asked in table.bounds.items()}},
        plan=plan(table.rollout),
        cooldown_s=table.rollout.cooldown,
        suggestion_ttl_s=table.rollout.suggestion_ttl,
        changes_per_day=table.rollout.changes_per_day,
        exam=wishes,
    )


def _path(here: Path, written: str) -> Path:
    """Relative to the config file; `~` is the home of who runs trimtab."""
    try:
        return here / Path(written).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{written}: {error}") from error
