"""`trimtab lint`: what an expert would say about a `vllm serve` command line; no server is needed."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from agent.advisor.case_options import add_options, case_of, unknown
from agent.advisor.render import as_json, as_text, improved, not_known, nothing
from agent.cli.dispatch import Subparsers
from agent.domain.errors import ConfigError
from lint.advice import Advice, advise
from lint.precedence import ranked
from lint.rules import all_lints
from vllm_facts.command.serve_command import edit_command, parse_command
from vllm_facts.deployment import Deployment, LintRule
from vllm_facts.errors import FlagError

NOTHING, FINDINGS = 0, 1  # 2: bad usage, as for every command


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "lint",
        help="what an expert would say about a command line",
        description="Exit status 0: nothing to say; 1: findings; 2: the command or an option cannot be read.",
        usage="trimtab lint [options] -- vllm serve MODEL [flags]",
    )
    add_options(parser)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- vllm serve MODEL …",
        help="the command, or `docker run … IMAGE …`; variables may stand in front of it",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    command = parse_command(args.command)
    try:
        case = case_of(args, command)
    except FlagError as error:
        raise ConfigError(f"the command cannot be read: {error}") from error
    lints = all_lints()
    advice = advise(case, lints, ranked)
    command = replace(command, env={} if command.before else case.env)
    better = edit_command(command, advice.to, advice.env)
    checked = sorted({rule for lint in lints for rule in lint.rules})
    lacking = [*unknown(case), *([command.unread] if command.unread else [])]
    still, undone = _still(advice, case, lints), command.undone(advice.to)
    if args.json:
        more = {"checked": checked, "still": still, "in_file": [asdict(line) for line in undone]}
        text = as_json(advice, case, better, assumed={}, unknown=lacking, more=more)
    elif not advice.findings:
        text = nothing(checked, lacking)
    else:
        text = as_text(advice, case, assumed={})
        if advice.to or advice.env:
            text += "\n" + improved(better, still, undone)
        text += "\n" + not_known(lacking)
    sys.stdout.write(text)
    return FINDINGS if advice.findings else NOTHING


def _still(advice: Advice, case: Deployment, lints: Sequence[LintRule]) -> list[str]:
    """The rules that say it does not start with all the changes either."""
    after = replace(advice.after(case), log=())
    left = [found for lint in lints for found in lint.check(after) if found.severity == "error"]
    logged = [
        found for found in advice.findings if found.severity == "error" and not found.to and not found.env
    ]
    return sorted({found.rule for found in (*left, *logged)})
