"""The line of each finding in its file, and the remarks on what could not be judged."""

import re

from flettner.tools.advisor.ci_formats import Located, Remark
from flettner.tools.advisor.launch_reports import LaunchReport
from flettner.tools.terminal.values import escape_text
from flettner.vllm_facts.launch_files.launch import line_of
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import describe_changes


def locate(one: LaunchReport) -> list[Located]:
    """The findings of one server with their lines."""
    if one.report is None:
        return []
    return [
        Located(
            finding=finding,
            change=escape_text(describe_changes({**finding.to, **finding.env})),
            file=one.file,
            line=_find_line(finding, one),
            name=one.launch.name,
        )
        for finding in one.report.fixes.findings
    ]


def _find_line(finding: Finding, one: LaunchReport) -> int:
    """The line of the first flag or variable that the finding is about, else of the command."""
    for name in (*finding.env, *finding.to, *finding.evidence, *_mentioned(finding)):
        if name in one.launch.env:
            return line_of(one.text, one.launch.env[name].start)
        spelled = "--" + name.partition(".")[0].replace("_", "-")
        for word in one.launch.words:
            flag = word.text.partition("=")[0].partition(".")[0].replace("_", "-")
            flag = flag.replace("--no-", "--", 1)
            if word.start and word.text.startswith(f"{name}="):
                return line_of(one.text, word.start)
            if word.start and flag == spelled.replace("--no-", "--", 1):
                return line_of(one.text, word.start)
    return one.line


def _mentioned(finding: Finding) -> list[str]:
    """The flags that the sentence names."""
    return [name.lstrip("-").replace("-", "_") for name in re.findall(r"--[a-z][\w-]+", finding.why)]


def remarks_of(one: LaunchReport) -> list[Remark]:
    """What could not be read or judged."""
    if one.report is None:
        return [Remark(text=f"{one.title}: {one.problem}", file=one.file, line=one.line, is_error=True)]
    texts = [*one.launch.remarks, *one.report.describe_missing()]
    return [Remark(text=f"{one.title}: {text}", file=one.file, line=one.line) for text in texts]
