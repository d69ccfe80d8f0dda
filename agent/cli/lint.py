"""`trimtab lint`: what an expert would say about a `vllm serve` command line; no server is needed."""

import argparse
import sys
from dataclasses import replace

from agent import expertise
from agent.advice import advise
from agent.cli import Subparsers
from agent.cli.case_options import add_options, case_of, unknown
from agent.cli.findings import as_json, as_text, not_known, nothing, paste
from agent.cli.serve_command import edited, read
from agent.errors import ConfigError, FlagError

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
    command = read(args.command)
    try:
        case = case_of(args, command)
    except FlagError as error:
        raise ConfigError(f"the command cannot be read: {error}") from error
    lints = expertise.lints()
    advice = advise(case, lints, expertise.precedence())
    command = replace(command, env={} if command.before else case.env)
    better = edited(command, advice.to, advice.env)
    checked = sorted({rule for lint in lints for rule in lint.rules})
    lacking = unknown(case)
    if args.json:
        text = as_json(advice, case, better, assumed={}, unknown=lacking, more={"checked": checked})
    elif not advice.findings:
        text = nothing(checked, lacking)
    else:
        text = as_text(advice, case, assumed={})
        if advice.to or advice.env:
            text += f"\nTHE COMMAND WITH THESE CHANGES\n{paste(better)}"
        text += "\n" + not_known(lacking)
    sys.stdout.write(text)
    return FINDINGS if advice.findings else NOTHING
