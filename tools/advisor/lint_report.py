"""The result of linting one command: findings, improved command, and what could not be judged."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.lint.advice import Advice, find_errors
from flettner.lint.missing_facts import EXTRA, FACTS, Judged, judge_coverage
from flettner.lint.precedence import ranked
from flettner.lint.rounds import advise_until_settled
from flettner.lint.rules import all_lints
from flettner.tools.advisor.case_options import build_deployment, missing_facts
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
from flettner.vllm_facts.deployment import Deployment, Launcher
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command

NO_FINDINGS, FINDINGS, NOT_JUDGED = 0, 1, 3
VERDICTS = {NO_FINDINGS: "no findings", FINDINGS: "findings", NOT_JUDGED: "not judged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """`unread`: places whose flags are unknown. `still`: the rules that report an error after all changes."""

    case: Deployment
    advice: Advice
    judged: Judged
    better: ServeCommand
    refused: bool  # the improved command would still not start
    still: Sequence[str]
    in_file: Sequence[UnsupportedEdit]
    unread: Sequence[str]

    @property
    def status(self) -> int:
        if self.advice.findings:
            return FINDINGS
        return NO_FINDINGS if self.judged.is_complete and not self.unread else NOT_JUDGED

    def describe_missing(self) -> list[str]:
        """What keeps the report from being complete."""
        missing = [fact for fact in self.judged.by_fact() if fact not in EXTRA]
        facts = "; ".join(FACTS[fact].describe(self.case) for fact in missing)
        return [*self.unread, *([f"not judged for lack of {facts}"] if missing else [])]

    def as_row(self) -> dict[str, Any]:
        more: Mapping[str, Any] = {
            "verdict": VERDICTS[self.status],
            "checked": [] if self.unread else self.judged.checked,
            "not_judged": [{"rule": rule, "lacks": facts} for rule, facts in self.judged.lacking.items()],
            "still": self.still,
            "model": _describe_model(self.case),
            "in_file": [asdict(line) for line in self.in_file],
        }
        lacking = [*missing_facts(self.case), *self.unread]
        offered = None if self.refused else self.better
        return as_row(self.advice, self.case, offered, assumed={}, unknown=lacking, more=more)

    def as_text(self) -> str:
        if not self.advice.findings:
            return format_no_findings(self.judged, self.case, self.unread)
        text = as_text(self.advice, self.case, assumed={})
        if self.refused:
            text += "\n" + format_no_command(self.still)
        elif self.advice.to or self.advice.env:
            text += "\n" + format_improved(self.better, self.still, self.in_file)
            text += format_live_limits(self.advice.to, self.case.setting, self.case.env)
        return text + "\n" + format_not_judged(self.judged, self.case, self.unread)


def lint_command(
    command: ServeCommand,
    args: argparse.Namespace,
    *,
    version: str = "",
    gpus: int | None = None,
    little_shared_memory: Launcher | None = None,
    unread: Sequence[str] = (),
) -> LintReport:
    """Lint a command with the options of the command line. Raises ConfigError."""
    try:
        case = build_deployment(
            args, command, version=version, gpus=gpus, little_shared_memory=little_shared_memory
        )
    except FlagError as error:
        raise ConfigError(f"cannot parse the command: {error}") from error
    lints = all_lints()
    advice = advise_until_settled(case, lints, ranked)
    command = replace(command, env={} if command.before else case.env)
    errors = find_errors(advice.after(case), lints)
    return LintReport(
        case=case,
        advice=advice,
        judged=judge_coverage(case, lints),
        better=edit_command(command, advice.to, advice.env),
        refused=bool(errors),
        still=sorted({rule for rule, _ in errors} | _logged_errors(advice)),
        in_file=command.unsupported_edits(advice.to),
        unread=[*unread, *([command.unread] if command.unread else [])],
    )


def _logged_errors(advice: Advice) -> set[str]:
    """The rules that report an error in the log, which no change corrects."""
    return {
        found.rule
        for found in advice.findings
        if found.severity == "error" and not found.to and not found.env
    }


def _describe_model(case: Deployment) -> dict[str, object] | None:
    """The model's size and where its numbers come from; None without any."""
    model = case.model or case.estimate
    if model is None:
        return None
    return {
        "name": model.name,
        "parameters": model.parameters,
        "quantization": model.quantization,
        "source": model.source,
        "estimate": case.model is None,
    }
