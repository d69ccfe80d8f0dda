"""The result of linting one command: findings, improved command, and what could not be judged."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.lint.card_sizes import find_fixes_for_sizes
from flettner.lint.fixes import SEVERITIES, Fixes, find_errors
from flettner.lint.migration import Migration
from flettner.lint.missing_facts import EXTRA, FACTS, Judged, judge_coverage
from flettner.lint.rules import all_lints
from flettner.rules.table import slug_of
from flettner.tools.advisor.fact_options import build_serve_config, missing_facts
from flettner.tools.advisor.migration_report import (
    as_rows,
    compare_entries,
    format_refusal,
    migrate_config,
    remind_of_image,
    replace_image,
)
from flettner.tools.advisor.migration_report import as_text as format_migration
from flettner.tools.advisor.render import (
    as_row,
    as_text,
    format_improved,
    format_live_limits,
    format_no_command,
    format_no_findings,
    format_not_judged,
)
from flettner.vllm_facts.config_file import UnsupportedEdit
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.serve_config import (
    Container,
    FindingSeverity,
    Granted,
    Launcher,
    LintRule,
    ServeConfig,
    SharedCard,
)
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command

NO_FINDINGS, FINDINGS, NOT_JUDGED = 0, 1, 3
ONLY = ("error", "auto")
"""Which changes `--only` takes: those of errors, or those of class auto."""
VERDICTS = {NO_FINDINGS: "no findings", FINDINGS: "findings", NOT_JUDGED: "not judged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """`unread`: places whose flags are unknown. `still`: the rules that report an error after all changes."""

    config: ServeConfig
    fixes: Fixes
    judged: Judged
    better: ServeCommand
    refused: bool  # the improved command would still not start
    still: Sequence[str]
    in_file: Sequence[UnsupportedEdit]
    unread: Sequence[str]
    fail_on: FindingSeverity = "info"
    migration: Migration | None = None  # to another release; then the findings are those of the migration

    @property
    def status(self) -> int:
        grave = SEVERITIES[: SEVERITIES.index(self.fail_on) + 1]
        if any(finding.severity in grave for finding in self.fixes.findings):
            return FINDINGS
        if self.fixes.findings or self.migration:
            return NO_FINDINGS
        return NO_FINDINGS if self.judged.is_complete and not self.unread else NOT_JUDGED

    @property
    def verdict(self) -> str:
        return VERDICTS[FINDINGS if self.fixes.findings else self.status]

    def describe_missing(self) -> list[str]:
        """List the facts and the text that the report lacks."""
        missing = [fact for fact in self.judged.by_fact() if fact not in EXTRA]
        facts = "; ".join(FACTS[fact].describe(self.config) for fact in missing)
        return [*self.unread, *([f"not judged for lack of {facts}"] if missing else [])]

    def as_row(self) -> dict[str, Any]:
        more: Mapping[str, Any] = {
            **({"migration": as_rows(self.migration)} if self.migration else {}),
            "verdict": self.verdict,
            "checked": [] if self.unread else self.judged.checked,
            "not_judged": [
                {"rule": rule, "slug": slug_of(rule), "lacks": facts}
                for rule, facts in self.judged.lacking.items()
            ],
            "still": self.still,
            "model": _describe_model(self.config),
            "in_file": [asdict(line) for line in self.in_file],
        }
        lacking = [*missing_facts(self.config), *self.unread]
        offered = None if self.refused else self.better
        return as_row(self.fixes, self.config, offered, assumed={}, unknown=lacking, more=more)

    def as_text(self) -> str:
        if self.migration:
            table = format_migration(self.migration)
            if self.refused:
                return f"{table}\n{format_refusal(self.migration.refused, self.migration.new)}"
            return f"{table}\n{format_improved(self.better, (), self.in_file)}"
        if not self.fixes.findings:
            return format_no_findings(self.judged, self.config, self.unread)
        text = as_text(self.fixes, self.config, assumed={})
        if self.refused:
            text += "\n" + format_no_command(self.still)
        elif self.fixes.to or self.fixes.env:
            text += "\n" + format_improved(self.better, self.still, self.in_file)
            text += format_live_limits(self.fixes.to, self.config.setting, self.config.env)
        return text + "\n" + format_not_judged(self.judged, self.config, self.unread)


def _joins_ray(log: Sequence[str]) -> bool:
    """Whether the server of the log joined a Ray cluster that was there, as several hosts need."""
    return any("Connecting to existing Ray cluster" in line for line in log)


def lint_command(
    command: ServeCommand,
    args: argparse.Namespace,
    *,
    version: str = "",
    gpu: str = "",
    gpus: int | None = None,
    little_shared_memory: Launcher | None = None,
    granted: Granted | None = None,
    container: Container | None = None,
    hosts: int | None = None,
    ray: bool = False,
    in_process: bool = False,
    unread: Sequence[str] = (),
    shared_card: SharedCard | None = None,
) -> LintReport:
    """Lint a command with the options of the command line. Raises ConfigError."""
    try:
        config = build_serve_config(
            args, command, version=version, gpu=gpu, gpus=gpus, little_shared_memory=little_shared_memory
        )
    except FlagError as error:
        raise ConfigError(f"cannot parse the command: {error}") from error
    described = container or (None if unread else command.container)
    config = replace(config, shared_card=shared_card, granted=granted, container=described, hosts=hosts)
    config = replace(config, ray=ray or _joins_ray(config.log), in_process=in_process)
    if args.upgrade_to:
        return _report_migration(command, config, args, unread)
    lints = all_lints()
    fixes, config = find_fixes_for_sizes(config, lints)
    if args.only:
        fixes = _restrict(fixes, config, lints, args.only)
    command = replace(command, env={} if command.before else config.env)
    errors, logged = find_errors(fixes.after(config), lints), _logged_errors(fixes)
    if logged:  # an error of the flags that another finding's change corrects is none any more
        logged -= {rule for rule, _ in find_errors(config, lints)}
    return LintReport(
        config=config,
        fixes=fixes,
        judged=judge_coverage(config, lints),
        better=edit_command(command, fixes.to, fixes.env),
        refused=bool(errors),
        still=sorted({rule for rule, _ in errors} | logged),
        in_file=command.unsupported_edits(fixes.to),
        unread=[*unread, *([command.unread] if command.unread else [])],
        fail_on=args.fail_on,
    )


def _report_migration(
    command: ServeCommand, config: ServeConfig, args: argparse.Namespace, unread: Sequence[str]
) -> LintReport:
    """The command for the release of `--upgrade-to`. Raises ConfigError."""
    if args.only:
        raise ConfigError("--only: chooses among findings; leave it out, or --upgrade-to")
    successor = replace_image(command, args.upgrade_to)
    if successor.argv != command.argv:
        config = replace(config, setting={**successor.setting, **successor.exposure})
    migration = migrate_config(config, args.upgrade_to)
    entries = compare_entries(command, successor)
    if config.version and not (args.vllm_version or args.log or command.before):
        entries.append(remind_of_image(migration.old, migration.new))
    fixes = migration.fixes
    migration = replace(migration, differences=(*entries, *migration.differences))
    successor = replace(successor, env={} if successor.before else config.env)
    return LintReport(
        config=config,
        fixes=fixes,
        judged=judge_coverage(config, ()),
        better=edit_command(successor, fixes.to, fixes.env),
        refused=bool(migration.refused),
        still=[row.before or row.finding.rule for row in migration.refused],
        in_file=command.unsupported_edits(fixes.to),
        unread=[*unread, *([command.unread] if command.unread else [])],
        fail_on=args.fail_on,
        migration=migration,
    )


def _restrict(fixes: Fixes, config: ServeConfig, lints: Sequence[LintRule], only: str) -> Fixes:
    """The changes of errors, or of class auto, as far as they bring no error without the others."""
    before = find_errors(config, lints).keys()
    restricted = replace(fixes, to={}, env={})
    for finding in fixes.findings:
        if only not in (finding.severity, finding.klass):
            continue
        more = replace(
            restricted,
            to={**restricted.to, **{knob: fixes.to[knob] for knob in finding.to if knob in fixes.to}},
            env={**restricted.env, **{name: fixes.env[name] for name in finding.env if name in fixes.env}},
        )
        if find_errors(more.after(config), lints).keys() <= before:
            restricted = more
    return restricted


def _logged_errors(fixes: Fixes) -> set[str]:
    """Return the rules that report an error in the log, which no change corrects."""
    return {
        finding.rule
        for finding in fixes.findings
        if finding.severity == "error" and not finding.to and not finding.env
    }


def _describe_model(config: ServeConfig) -> dict[str, object] | None:
    """Return the model's size and where its numbers come from; None without any."""
    model = config.model or config.estimate
    if model is None:
        return None
    return {
        "name": model.name,
        "parameters": model.parameters,
        "quantization": model.quantization,
        "source": model.source,
        "estimate": config.model is None,
    }
