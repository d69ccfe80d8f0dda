"""The last error in the log, where no rule explains it: rule F10."""

import re
from collections.abc import Iterable

from lint.recogniser import LOG, LONGEST_LINE, Recogniser
from lint.rules import api_errors, engine_errors, host_errors, kernel_errors, log, out_of_memory, start_errors
from vllm_facts.deployment import Deployment, Finding
from vllm_facts.sizing.effective_flags import DeploymentCheck

_ERROR = re.compile(
    r"(?<![\w.])(?P<kind>(?:[A-Za-z_][\w.]*)?(?:Error|Exception))\b(?::| -) ?(?P<text>\S.*)"
    r"|(?P<value>Value error, \S.*)"
    r"|(?P<parser>\berror: (?:argument|the following|unrecognized) .*)"
    r"|(?:^|(?<=[\])] ))(?P<bare>[A-Za-z_][\w.]*(?:Error|Exception))$"
    r"|(?P<fault>\bfatal *: \S.*|Memory access fault by GPU.*|Segmentation fault.*|Bus error.*"
    r"|Fatal Python error: .*|what\(\): +\S.*|terminate called .*|Aborted \(core dumped\))"
)
_WRAPPER = re.compile(
    r"Engine core (?:proc|initialization)|EngineDeadError|EngineCore encountered|WorkerProc initialization"
    r"|Worker failed with error|see (?:the )?(?:stack trace|root cause)|\d+ validation errors? for"
    r"|CancelledError|KeyboardInterrupt|SystemExit|ConnectionResetError|BrokenPipeError",
    re.IGNORECASE,
)
"""Errors that only report another one, or that a client or a stop causes."""

_LAST_RESORT = re.compile(
    r"Engine core proc\w* .*|EngineCore (?:encountered|failed) .*|Engine core initialization failed.*"
    r"|WorkerProc initialization failed.*|Worker failed with error.*"
    r"|\b(?:ERROR|CRITICAL)\b.*?\] (?!Traceback|File |\^|\s)\S.*"
)
"""Lines to quote if the log has no other error: they report one, or have the level of one."""

_KNOWN = tuple(
    check.pattern
    for module in (log, out_of_memory, start_errors, api_errors, engine_errors, kernel_errors, host_errors)
    for check in module.LINTS
    if isinstance(check, Recogniser)
)
_SERVES = re.compile(r"Application startup complete|Avg generation throughput|HTTP/1\.1\" 200")


def _check_last_error(case: Deployment) -> Iterable[Finding]:
    lines = [line[:LONGEST_LINE] for line in case.log]
    served = [place for place, line in enumerate(lines) if _SERVES.search(line)]
    since = lines[served[-1] + 1 :] if served else lines  # before, errors of single requests are no reason
    found = (match for line in reversed(since) if (match := _ERROR.search(line)))
    root = next((match for match in found if not _WRAPPER.search(match[0])), None)
    last = root or next(filter(None, map(_LAST_RESORT.search, reversed(since))), None)
    if last and not any(re.search(pattern, last.string) for pattern in _KNOWN):
        yield _build(last[0].strip(), started=bool(served))


def _build(error: str, *, started: bool) -> Finding:
    return Finding(
        rule="F10",
        klass="note",
        severity="warning" if started else "error",
        why=f"the log's last error, which no rule explains: {error[:240]}",
        expects="find its cause before other changes: vLLM's issues and release notes for this "
        "text; no flag here is known to cause it",
        evidence={"line": error[:240]},
    )


LINTS = (
    DeploymentCheck(
        rules=("F10",),
        find=_check_last_error,
        reports="the last error in the log, where no other rule explains it: the line is quoted",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting/",
        needs=LOG,
    ),
)
