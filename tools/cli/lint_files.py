"""`flettner lint -f FILE`: the servers of files, their findings, and the changes written back."""

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.primitives.files import read_bounded, read_file, replacing
from flettner.tools.advisor.ci_formats import Located, Remark, as_github, as_sarif
from flettner.tools.advisor.launch_edits import WrittenFile, write_changes
from flettner.tools.advisor.launch_reports import LaunchReport, lint_text
from flettner.tools.advisor.lint_report import FINDINGS, NO_FINDINGS, NOT_JUDGED, VERDICTS
from flettner.tools.cli.dispatch import find_version
from flettner.tools.cli.exits import USAGE
from flettner.tools.terminal.messages import complain
from flettner.tools.terminal.values import escape_text
from flettner.vllm_facts.launch_files.launch import line_of
from flettner.vllm_facts.launch_files.recognise import KINDS
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import describe_changes

STDIN = "-"
_MAX_FILE = 2**20
_HOST_FILES = (re.compile(r"\.service$"), re.compile(r"(^|/)(docker-)?compose[\w.-]*\.ya?ml$"))
_MAX_CPU_S = 20.0  # of one file; a large one takes less than a second


def lint_files(files: Sequence[str], args: argparse.Namespace) -> int:
    """Check each file, print what `args` ask for, and return the exit status. Raises ConfigError."""
    if args.fix and STDIN in files:
        raise ConfigError("--fix: standard input cannot be written; use --diff, or give the file")
    texts: dict[str, str] = {}
    reports: list[LaunchReport] = []
    unreadable: list[ConfigError] = []
    for file in dict.fromkeys(files):
        name = "<stdin>" if file == STDIN else file
        try:
            texts[name] = _read(file)
        except ConfigError as error:
            unreadable.append(error)
    for name in texts:
        try:
            reports += _lint_file(name, texts, args)
        except ConfigError as error:
            unreadable.append(error)
    if unreadable and not reports:
        raise unreadable[0]
    for problem in unreadable:
        complain(str(problem))
    status = _finish(reports, texts, args)
    return USAGE if unreadable else status


def _finish(reports: Sequence[LaunchReport], texts: Mapping[str, str], args: argparse.Namespace) -> int:
    """Print or write what `args` ask for, and return the exit status."""
    if args.fix or args.diff:
        written = _write_all(reports)
        for title, why in (row for new in written.values() for row in new.refused.items()):
            complain(f"{title}: not written: {why}")
        if args.diff:
            patch = [_diff(file, texts[file], new.text) for file, new in written.items()]
            sys.stdout.write("".join(patch))
            return _status(reports)
        reports = _fix(reports, written, texts, args)
    sys.stdout.write(_format(reports, args.format))
    return _status(reports)


def _read(file: str) -> str:
    try:
        if file == STDIN:
            return read_bounded(sys.stdin.buffer, _MAX_FILE).decode()
        return read_file(Path(file), _MAX_FILE).decode()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; give {KINDS}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text; give {KINDS}") from error


def _lint_file(file: str, texts: Mapping[str, str], args: argparse.Namespace) -> list[LaunchReport]:
    text = texts[file]
    if args.skip_unrelated and "vllm" not in text.lower():
        return []
    with _limited(file):
        reports = lint_text(file, text, args, beside=_on_same_host(file, texts))
    if not reports and not args.skip_unrelated:
        raise ConfigError(f"{file}: starts no vLLM server that lint can read; give {KINDS}")
    return reports


def _on_same_host(file: str, texts: Mapping[str, str]) -> dict[str, str]:
    """The other units, or the other files of a compose project, of those that are linted together."""
    kind = next((pattern for pattern in _HOST_FILES if pattern.search(file)), None)
    return {
        other: text
        for other, text in texts.items()
        if kind is not None
        and other != file
        and kind.search(other)
        and Path(other).parent == Path(file).parent
    }


@contextmanager
def _limited(file: str) -> Iterator[None]:
    """Raises ConfigError once the file has taken `_MAX_CPU_S` of CPU: a hook of CI must end."""

    def stop(_number: int, _frame: object) -> None:
        raise ConfigError(f"{file}: checking it takes more than {_MAX_CPU_S:g} s of CPU; give a smaller file")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _write_all(reports: Sequence[LaunchReport]) -> dict[str, WrittenFile]:
    by_file: dict[str, list[LaunchReport]] = {}
    for report in reports:
        by_file.setdefault(report.file, []).append(report)
    return {file: write_changes(own) for file, own in by_file.items()}


def _diff(file: str, old: str, new: str) -> str:
    before, after = (text.splitlines(keepends=True) for text in (old, new))
    patch = unified_diff(before, after, fromfile=f"a/{file}", tofile=f"b/{file}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in patch
    )


def _fix(
    reports: Sequence[LaunchReport],
    written: Mapping[str, WrittenFile],
    texts: Mapping[str, str],
    args: argparse.Namespace,
) -> list[LaunchReport]:
    """Write the changed files, and lint the servers again."""
    checked: list[LaunchReport] = []
    for file, new in written.items():
        own = [report for report in reports if report.file == file]
        if new.text != own[0].text:
            _replace_file(Path(file), new.text)
            after = {**texts, **{name: other.text for name, other in written.items()}}
            with _limited(file):
                own = lint_text(file, new.text, args, beside=_on_same_host(file, after))
        checked += own
        for title, changes in new.changed.items():
            sys.stderr.write(f"fixed {escape_text(title)}: {escape_text(changes)}\n")
    return checked


def _replace_file(file: Path, text: str) -> None:
    """Write the whole file or nothing of it; links within its folder and permissions are kept."""
    folder, file = file.parent.resolve(), file.resolve()
    if not file.is_relative_to(folder):
        raise ConfigError(f"--fix: a link leads to {file}, out of {folder}: give that file itself, or --diff")
    try:
        with replacing(file, mode=0o600, durable=True) as draft:
            draft.write(text.encode())
            os.fchmod(draft.fileno(), file.stat().st_mode & 0o7777)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; use --diff") from error


def _format(reports: Sequence[LaunchReport], form: str) -> str:
    if form == "text":
        return "\n".join(map(_as_text, reports))
    if form == "json":
        servers = [_as_row(report) for report in reports]
        return json.dumps({"verdict": _verdict(reports), "servers": servers}, indent=2) + "\n"
    places = [located for report in reports for located in locate(report)]
    remarks = [remark for report in reports for remark in remarks_of(report)]
    return as_github(places, remarks) if form == "github" else as_sarif(places, remarks, find_version())


def _as_text(server: LaunchReport) -> str:
    body = server.report.as_text() if server.report else f"CANNOT BE READ: {escape_text(server.problem)}\n"
    remarks = "".join(f"  remark    {escape_text(text)}\n" for text in server.launch.remarks)
    return f"== {escape_text(server.title)}\n{body}{remarks}"


def _as_row(server: LaunchReport) -> dict[str, Any]:
    place = {"file": server.file, "line": server.line, "name": server.launch.name}
    if server.report is None:
        return {**place, "verdict": "cannot be read", "problem": server.problem}
    return {**place, **server.report.as_row(), "remarks": server.launch.remarks}


def _verdict(reports: Sequence[LaunchReport]) -> str:
    status = _status(reports)
    has_findings = any(server.report and server.report.fixes.findings for server in reports)
    return {**VERDICTS, USAGE: "cannot be read"}[FINDINGS if has_findings and status != USAGE else status]


def _status(reports: Sequence[LaunchReport]) -> int:
    """Return the most urgent: a command that cannot be read, findings, rules that are not judged."""
    statuses = {server.report.status if server.report else USAGE for server in reports}
    return next((status for status in (USAGE, FINDINGS, NOT_JUDGED) if status in statuses), NO_FINDINGS)


def locate(server: LaunchReport) -> list[Located]:
    """Return the findings of one server with their lines."""
    if server.report is None:
        return []
    return [
        Located(
            finding=finding,
            change=escape_text(describe_changes({**finding.to, **finding.env})),
            file=server.file,
            line=_find_line(finding, server),
            name=server.launch.name,
        )
        for finding in server.report.fixes.findings
    ]


def _find_line(finding: Finding, server: LaunchReport) -> int:
    """Return the line of the first flag or variable that the finding is about, else of the command."""
    for name in (*finding.env, *finding.to, *finding.evidence, *_mentioned(finding)):
        if name in server.launch.env:
            return line_of(server.text, server.launch.env[name].start)
        spelled = "--" + name.partition(".")[0].replace("_", "-")
        for word in server.launch.words:
            flag = word.text.partition("=")[0].partition(".")[0].replace("_", "-")
            flag = flag.replace("--no-", "--", 1)
            if word.start and word.text.startswith(f"{name}="):
                return line_of(server.text, word.start)
            if word.start and flag == spelled.replace("--no-", "--", 1):
                return line_of(server.text, word.start)
    return server.line


def _mentioned(finding: Finding) -> list[str]:
    """Return the flags that the sentence names."""
    return [name.lstrip("-").replace("-", "_") for name in re.findall(r"--[a-z][\w-]+", finding.why)]


def remarks_of(server: LaunchReport) -> list[Remark]:
    """Return what could not be read or judged."""
    if server.report is None:
        return [
            Remark(
                text=f"{server.title}: {server.problem}", file=server.file, line=server.line, is_error=True
            )
        ]
    texts = [*server.launch.remarks, *server.report.describe_missing()]
    return [Remark(text=f"{server.title}: {text}", file=server.file, line=server.line) for text in texts]
