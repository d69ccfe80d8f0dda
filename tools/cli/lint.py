"""`flettner lint`: check a `vllm serve` command line, or files that hold one; no server is needed."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flettner.agent.domain.errors import ConfigError
from flettner.lint.fixes import SEVERITIES
from flettner.tools.advisor.fact_options import add_options
from flettner.tools.advisor.lint_report import ONLY, LintReport, lint_command
from flettner.tools.cli.dispatch import Subparsers, add_command, find_version
from flettner.tools.terminal.values import escape_text
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.values import describe_changes

FORMATS = ("text", "json", "sarif", "github")
_FILE_SUFFIXES = (".yaml", ".yml", ".service", ".sh", ".json", ".txt")


def add_lint(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "lint",
        "check a vllm serve command line for problems",
        "Exit status 0: no findings, or only some below --fail-on; 1: findings; 2: the command, a file or an "
        "option cannot be read; 3: no findings, but not all rules could be judged, because facts such as the "
        "GPU are missing.",
        usage="flettner lint [options] -- vllm serve MODEL [flags]\n"
        "       flettner lint [options] -f FILE ...",
    )
    add_options(parser)
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to print the findings")
    parser.add_argument(
        "--json", action="store_const", dest="format", const="json", default="text", help="as --format json"
    )
    parser.add_argument(
        "-f",
        "--file",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="compose file, Kubernetes manifest, Helm values, systemd unit, shell script or list of flags; "
        "- reads standard input",
    )
    parser.add_argument(
        "--fix", action="store_true", help="write the changes into the files, then check again"
    )
    parser.add_argument(
        "--diff", action="store_true", help="print the changes as a patch instead of findings"
    )
    parser.add_argument(
        "--only",
        choices=ONLY,
        help="take only the changes that correct an error, or only those that no user sees",
    )
    parser.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        default="warning",
        help="the least severity that makes the exit status 1: info counts notes, too (%(default)s)",
    )
    parser.add_argument(
        "--upgrade-to",
        metavar="V",
        help="instead of findings, show the command for this release of vLLM and what differs there from "
        "--vllm-version or the image; an older release counts as well",
    )
    parser.add_argument("--skip-unrelated", action="store_true", help="skip files that do not start vLLM")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- vllm serve MODEL …",
        help="the command, only its flags, or `docker run … IMAGE …`; environment variables may precede it",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    files = args.file
    if files and words:
        raise ConfigError(f"-f {files[0]}: give files or a command, not both ({' '.join(words[:3])})")
    if not files and words and all(Path(word).is_file() for word in words):
        files = words
    if files:
        from flettner.tools.cli.lint_files import lint_files  # noqa: PLC0415 - a command needs no readers of files

        return lint_files(files, args)
    if args.fix or args.diff:
        raise ConfigError(f"{'--fix' if args.fix else '--diff'}: needs a file, as in `flettner lint -f FILE`")
    _refuse_file_names(words)
    if words and words[0].startswith("-"):
        words = ["vllm", "serve", *words] if len(words) > 1 else [f"vllm serve {words[0]}"]
    report = lint_command(parse_command(words), args)
    sys.stdout.write(_format(report, args.format))
    return report.status


def _refuse_file_names(words: Sequence[str]) -> None:
    """Raises ConfigError if a file's name stands where a command belongs."""
    first = words[0] if words else ""
    if not first.endswith(_FILE_SUFFIXES) or any(char.isspace() for char in first):
        return
    if Path(first).is_file():
        raise ConfigError(f"{first}: options come before the file, as in `flettner lint --gpu T4 -f {first}`")
    raise ConfigError(f"{first}: no such file; give a file that exists, or a command after --")


def _format(report: LintReport, form: str) -> str:
    if form == "json":
        return json.dumps(report.as_row(), indent=2) + "\n"
    if form == "text":
        return report.as_text()
    from flettner.tools.advisor.ci_formats import Located, Remark, as_github, as_sarif  # noqa: PLC0415

    located = [
        Located(finding=finding, change=escape_text(describe_changes({**finding.to, **finding.env})))
        for finding in report.fixes.findings
    ]
    remarks = [Remark(text=text) for text in report.describe_missing()]
    return as_github(located, remarks) if form == "github" else as_sarif(located, remarks, find_version())
