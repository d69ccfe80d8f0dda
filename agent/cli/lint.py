"""`trimtab lint`: check a `vllm serve` command line for problems; no server is needed."""

import argparse
import sys
from dataclasses import asdict, replace

from agent.advisor.case_options import add_options, build_deployment, missing_facts
from agent.advisor.render import (
    as_json,
    as_text,
    format_improved,
    format_no_command,
    format_no_findings,
    format_not_judged,
)
from agent.cli.dispatch import Subparsers, add_command
from agent.domain.errors import ConfigError
from lint.advice import Advice, advise, find_errors
from lint.missing_facts import Judged, judge_coverage
from lint.precedence import ranked
from lint.rules import all_lints
from vllm_facts.deployment import Model
from vllm_facts.errors import FlagError
from vllm_facts.shell_command.serve_command import ServeCommand, edit_command, parse_command

NO_FINDINGS, FINDINGS, NOT_JUDGED = 0, 1, 3


def add_lint(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "lint",
        "check a vllm serve command line for problems",
        "Exit status 0: no findings; 1: findings; 2: the command or an option cannot be parsed; 3: no "
        "findings, but not all rules could be judged, because facts such as the GPU are missing.",
        usage="trimtab lint [options] -- vllm serve MODEL [flags]",
    )
    add_options(parser)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- vllm serve MODEL …",
        help="the command, or `docker run … IMAGE …`; environment variables may precede it",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    command = parse_command(args.command)
    try:
        case = build_deployment(args, command)
    except FlagError as error:
        raise ConfigError(f"cannot parse the command: {error}") from error
    lints = all_lints()
    advice, judged = advise(case, lints, ranked), judge_coverage(case, lints)
    command = replace(command, env={} if command.before else case.env)
    better = edit_command(command, advice.to, advice.env)
    lacking = [*missing_facts(case), *([command.unread] if command.unread else [])]
    errors = find_errors(advice.after(case), lints)
    still = sorted({rule for rule, _ in errors} | _logged_errors(advice))
    undone = command.unsupported_edits(advice.to)
    status = _find_status(advice, judged, command)
    if args.json:
        more = {
            "verdict": VERDICTS[status],
            "checked": [] if command.unread else judged.checked,
            "not_judged": [{"rule": rule, "lacks": facts} for rule, facts in judged.lacking.items()],
            "still": still,
            "model": _describe_model(case.model or case.estimate, is_known=case.model is not None),
            "in_file": [asdict(line) for line in undone],
        }
        text = as_json(advice, case, None if errors else better, assumed={}, unknown=lacking, more=more)
    elif not advice.findings:
        text = format_no_findings(judged, case, command.unread)
    else:
        text = as_text(advice, case, assumed={})
        if errors:
            text += "\n" + format_no_command(still)
        elif advice.to or advice.env:
            text += "\n" + format_improved(better, still, undone)
        text += "\n" + format_not_judged(judged, case, command.unread)
    sys.stdout.write(text)
    return status


VERDICTS = {NO_FINDINGS: "no findings", FINDINGS: "findings", NOT_JUDGED: "not judged"}


def _find_status(advice: Advice, judged: Judged, command: ServeCommand) -> int:
    if advice.findings:
        return FINDINGS
    return NO_FINDINGS if judged.is_complete and not command.unread else NOT_JUDGED


def _logged_errors(advice: Advice) -> set[str]:
    """The rules that report an error in the log, which no change corrects."""
    return {
        found.rule
        for found in advice.findings
        if found.severity == "error" and not found.to and not found.env
    }


def _describe_model(model: Model | None, *, is_known: bool) -> dict[str, object] | None:
    """The model's size and where its numbers come from; None without any."""
    if model is None:
        return None
    return {
        "name": model.name,
        "parameters": model.parameters,
        "quantization": model.quantization,
        "source": model.source,
        "estimate": not is_known,
    }
