"""The last error in the log, where no other rule explains it: rule F10.

The table of vLLM's own errors tells the file, the releases and the flags that the error depends on.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from flettner.lint.asked_changes import read_asked_changes
from flettner.lint.kernel_causes import name_next_backend
from flettner.lint.missing_paths import describe_missing_path
from flettner.lint.recogniser import LOG, Recogniser
from flettner.lint.rules import (
    architectures,
    known_errors,
    log,
    out_of_memory,
    served_names,
    start_errors,
    unified_memory,
)
from flettner.lint.unfit_packages import (
    EXPLAIN_OVERLAY,
    describe_unfit_package,
    find_overlaid,
    find_unfit_package,
)
from flettner.vllm_facts.code_areas import CodeLimit, find_limit, name_part_switch, name_switch, name_users
from flettner.vllm_facts.knobs import release_of
from flettner.vllm_facts.raised_errors import RaisedError, find_raised, format_release, next_release
from flettner.vllm_facts.releases import NAME, RELEASE, TABLE
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, json_entry
from flettner.vllm_facts.start_facts import LONGEST_LINE
from flettner.vllm_facts.values import Knob

_ERROR = re.compile(
    r"(?<![\w.])(?P<kind>(?:[A-Za-z_][\w.]*)?(?:Error|Exception))\b(?::| -) ?(?P<text>\S.*)"
    r"|(?P<value>(?:Value error|Assertion failed), \S.*)"
    r"|(?P<quoted>\b[A-Za-z_]\w*(?:Error|Exception)\([\"'(].*)"
    r"|(?P<parser>\berror: (?:argument|the following|unrecognized) .*)"
    r"|(?:^|(?<=[\])] ))(?P<bare>[A-Za-z_][\w.]*(?:Error|Exception))$"
    r"|(?P<fault>\b(?:fatal *|FATAL(?: ERROR)?): \S.*|Memory access fault by GPU.*"
    r"|Seg(?:mentation |)fault\b.*|Bus error.*|Illegal instruction\b.*"
    r"|\*{3} SIG(?:SEGV|BUS|ILL|FPE|ABRT)\b.*|free\(\): invalid \w+"
    r"|Fatal Python error: .*|what\(\): +\S.*|terminate called .*|Aborted \(core dumped\))"
)
_WRAPPER = re.compile(
    r"Engine core (?:proc|initialization)|EngineDeadError|EngineCore (?:encountered|failed)"
    r"|WorkerProc (?:initialization|failed|hit)|Worker failed with error|died unexpectedly"
    r"|failed to be inspected|Error raised in subprocess"
    r"|see (?:the )?(?:stack trace|root cause|error|log)|\b\d{1,9} validation errors? for|ChildFailedError"
    r"|CancelledError|KeyboardInterrupt|SystemExit|ConnectionResetError|BrokenPipeError|EOFError"
    r"|TCPStore|recvValue failed|Connection (?:reset|closed) by|ContextTerminated|resource_tracker",
    re.IGNORECASE,
)
"""Errors that only report another error, or that a client or a stop causes."""

_INNER = re.compile(r"Worker failed with error ['\"](?P<text>(?:(?!Worker failed with).)+?)['\"], please")

_NATIVE = re.compile(
    r"CUDA (?:error|driver) ?:|CUDA driver version is insufficient|(?:Cuda|NCCL) failure|device-side assert"
    r"|Failed[:,] (?:Cuda|NCCL) error"
    r"|Assertion `[^`]{0,300}` failed|Watchdog caught collective operation timeout|/ld: cannot find "
    r"|(?:nvcc|ptxas)\w{0,40} ?(?:fatal|error) *:|ninja: build stopped|NCCL WARN |Failed to initialize NVML"
    r"|\.(?:cu|cuh|cpp)(?:[:(]\d+\)?){1,2}:? (?:fatal )?error\b|NVRM: |^Killed|Killed process"
    r"|oom-kill|OOMKilled|exit(?:ed with)? code:? ?137|HSA_STATUS_ERROR|HIP error:|double free or corruption",
)
"""Lines of C++, CUDA, compilers and the kernel, which have no level and no name of an error."""

_LAST_RESORT = re.compile(
    r"\b(?:ERROR|CRITICAL)\b.*?\] (?!Traceback|File |\^|\s)\S.*|Engine core proc\w* .*died unexpectedly.*"
    r"|^(?:\([^)]{1,60}\) )?(?:\[[^\]]{1,60}\]:? )?[\d:TZ.,/ -]{0,40}(?:ERROR|CRITICAL|FATAL)\b[: ] *"
    r"(?![^\]]{0,80}\] |[\d-]|Traceback|File |Exception in ASGI)\S.*"
    r"|^[\w./ -]{1,80}: (?:(?:line )?\d{1,5}: )?(?:exec: )?[\w./-]{1,80}: "
    r"(?:not found|command not found|Permission denied)$"
    r"|^[\w./-]{1,80}: (?:command not found$|can't open file .*|error while loading shared libraries: .*)"
    r"|^exec [\w./-]{1,80}: (?:exec format error|no such file or directory|permission denied)$"
    r"|Error response from daemon: \S.*|^[Ee]rror: \S.*"
    r'|"level": ?"(?:error|fatal)".*'
)
"""Lines to quote if the log has no other error: they have the level of an error, or no server started."""

_NO_CAUSE = re.compile(
    r"(?:Engine core|WorkerProc) initialization failed|EngineCore (?:failed|encountered)"
    r"|Model architectures .{0,200} failed to be inspected"
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b.*?\] (?P<text>.*--[a-z].*)")
_SHOWN = 2  # warnings
_BEHIND = 3  # minor releases: a fault of fewer may not have been fixed
_TURING = (7, 5)  # the oldest GPUs of current releases

_SAYS_WHAT_TO_DO = re.compile(
    r"\b(?:please|instead|must|should|use|set|try|pass|specify|install|upgrade|enable|disable|consider"
    r"|increas(?:e|ing)|reduc(?:e|ing)|decreas(?:e|ing)|cannot be|only supports?|(?:not|only) supported"
    r"|requires?)\b|--\w",
    re.IGNORECASE,
)
_OF_PYTHON = re.compile(
    r"has no attribute|No module named|cannot import name|unexpected keyword argument|is not subscriptable"
    r"|positional arguments?\b|not iterable|index out of range|object is not callable|JSONDecodeError"
)
"""Messages of Python itself: that vLLM has one of the same words in a check says nothing."""

_SET = re.compile(
    r"(?:(?:^|[.:;] )(?:Please s|S)et|\b[Ee]nable \w{1,40} with) "
    r"(?P<name>VLLM_[A-Z\d_]{1,80})=(?P<value>\w{1,40})\b"
)
_FRAME = re.compile(r"\bin (?P<name>\w+(?:::~?\w+)+)")
_CONDITION = re.compile(r"\bassert\b")
_OPEN = re.compile(r"\bassert *\(?$")
_PREFIX = re.compile(r"^.{0,200}?\.py:\d{1,6}\] ")
_SOURCE = re.compile(r'^File "[^"]{1,300}", line \d')
_ABOVE, _BELOW = 80, 40  # lines: a traceback is above its error, and below a fault of the process
_LONG = 120  # characters of a source line
_NEAR = 8  # lines of a traceback between the source line and the name of the error
_SERVES = re.compile(r"Application startup complete|Avg generation throughput|HTTP/1\.1\" 200")


def _check_last_error(config: ServeConfig) -> Iterable[Finding]:
    lines = [line[:LONGEST_LINE] for line in config.log]
    served = [place for place, line in enumerate(lines) if _SERVES.search(line)]
    since = lines[served[-1] + 1 :] if served else lines  # before, errors of single requests are no reason
    root = _find_root(since)
    last = root or _find_last_resort(since)
    if last is None and not served:
        yield from _check_cause(since, config)
    if last and not _is_known([last.string], config):
        error = (last.string if last.re is _NATIVE else last[0]).strip()
        inner = _INNER.search(error)
        own = inner["text"] if inner else error if root else ""
        raised = None if _OF_PYTHON.search(own) else find_raised(own)
        severity: FindingSeverity = "warning" if served else "error"
        place = since.index(last.string)
        after = _BELOW if last.re is _ERROR and last["fault"] else 0
        trace = since[max(0, place - _ABOVE) : place + 1 + after]
        if (limit := find_limit(error, trace)) is not None:
            yield _lengthen(limit, config, error)
            return
        error += _find_condition(trace) if root and root.re is _ERROR and root["bare"] else ""
        error += _find_function(trace) if after else ""
        if root and (package := find_unfit_package(error, trace)):
            what, expects = f"an import ended at {package}", describe_unfit_package(config.version)
            yield _blame(what, error, severity, expects)
            return
        if overlay := find_overlaid(trace, config.container.overlays if config.container else ()):
            what = (
                f"its traceback runs through {overlay}, which a mount of this container puts over vLLM's own"
            )
            yield _blame(what, error, severity, EXPLAIN_OVERLAY)
            return
        missing = describe_missing_path(error, config)
        users = "" if missing else name_users(config, trace)
        switch = "" if missing else _name_switch(config, trace, users)
        yield (
            _explain(own, raised, config, severity, users)
            if raised
            else _quote(error, severity, users, switch, missing, config)
        )


def _blame(what: str, error: str, severity: FindingSeverity, expects: str) -> Finding:
    return Finding(
        rule="F10",
        severity=severity,
        why=f"the log's last error: {what}: {error[:240]}",
        expects=expects,
        evidence={"line": error[:240]},
    )


def _name_switch(config: ServeConfig, trace: Sequence[str], users: str) -> str:
    """What leaves the code of a traceback out, or the part of it that has a variable of its own."""
    if users:
        return name_part_switch(config, trace)
    return name_switch(config, trace) or name_next_backend(config, trace)


def _lengthen(limit: CodeLimit, config: ServeConfig, error: str) -> Finding:
    given = config.env.get(limit.variable)
    now = f"{given} s" if given else f"{limit.default_s} s, the default"
    return Finding(
        rule="F9",
        klass="gated",
        severity="warning",
        env={limit.variable: limit.longer(config)},
        why=f"requests fail because {limit.name} takes longer than {limit.variable} allows ({now})",
        source=limit.source,
        expects=f"the request waits for it; or {limit.instead}; a server without a way out needs a proxy "
        "for it (https_proxy)",
        risks="a request to a dead host fails later",
        evidence={"line": error[:240]},
    )


def _find_root(lines: Sequence[str]) -> re.Match[str] | None:
    """The last error that is no report of another one; else the last line of C++ or CUDA."""
    errors = (match for line in reversed(lines) if (match := _ERROR.search(line)))
    named = (match for match in errors if _INNER.search(match[0]) or not _WRAPPER.search(match[0]))
    return next(named, None) or next(filter(None, map(_NATIVE.search, reversed(lines))), None)


def _find_condition(trace: Sequence[str]) -> str:
    """What a bare assertion asserts, or the source line at fault; "" if no traceback shows it."""
    near = [_PREFIX.sub("", line).strip() for line in trace[-_NEAR:-1]]
    starts = [place for place, line in enumerate(near) if _CONDITION.search(line)]
    if starts:
        first = near[starts[-1]]
        source = " ".join(near[starts[-1] : starts[-1] + 2]) if _OPEN.search(first) else first
        return f" ({source[source.index('assert') :].rstrip(' (,')[:_LONG]})"
    frames = [place for place, line in enumerate(near) if _SOURCE.search(line)]
    below = near[frames[-1] + 1 :] if frames else []
    return f" (at: {below[0].rstrip(' (,')[:_LONG]})" if below and below[0] else ""


def _find_function(trace: Sequence[str]) -> str:
    """The first function of C++ that the trace of a crashed process shows; "" without one."""
    frame = next(filter(None, map(_FRAME.search, trace)), None)
    return f" (in {frame['name']})" if frame else ""


def _find_last_resort(lines: Sequence[str]) -> re.Match[str] | None:
    matches = (match for line in reversed(lines) if (match := _LAST_RESORT.search(line)))
    died = "died unexpectedly"
    return next((match for match in matches if died in match[0] or not _WRAPPER.search(match[0])), None)


def _check_cause(log: Sequence[str], config: ServeConfig) -> Iterable[Finding]:
    """A log that tells that another process failed, and not why."""
    ended = next(filter(None, map(_NO_CAUSE.search, log)), None)
    if ended is None or _is_known(log, config):
        return
    line = ended[0]
    warnings = [match["text"][:160] for match in map(_WARNING.search, log) if match][-_SHOWN:]
    hint = f"; warnings that name a flag: {'; '.join(warnings)}" if warnings else ""
    yield Finding(
        rule="F10",
        severity="error",
        why=f"the log does not name the cause: '{line}' points to lines that are not there{hint}",
        expects="give the whole log, from the first line of the start; a process that the system killed "
        "leaves no line: look for its exit code and for `oom-kill` in dmesg",
        evidence={"line": line},
    )


def _is_known(lines: Sequence[str], config: ServeConfig) -> bool:
    """Whether another rule explains one of the lines."""
    return any(check.explains(line, config) for check in _log_checks() for line in lines)


@cache
def _log_checks() -> tuple[Recogniser, ...]:
    modules = (
        log,
        out_of_memory,
        unified_memory,
        start_errors,
        known_errors,
        served_names,
        architectures,
    )
    parts = (part for module in modules for check in module.LINTS for part in check.parts())
    return tuple(part for part in parts if isinstance(part, Recogniser))


def _quote(
    error: str, severity: FindingSeverity, users: str, switch: str, missing: str, config: ServeConfig
) -> Finding:
    """`users`: what of the command uses the code of the traceback; `switch`: what leaves it out.

    `missing`: what to do about a path that is not there.
    """
    if missing:
        return Finding(
            rule="F10",
            severity=severity,
            why=f"the log's last error names a path of this command: {error[:240]}",
            expects=missing,
            evidence={"line": error[:240]},
        )
    if users:
        less = f" (or with {switch})" if switch else ""
        first = f"start once without it{less}, to see whether that is the cause"
    elif switch:
        first = f"start once with another setting, to see whether that is the cause: {switch}"
    else:
        first = "no flag here is known to cause it"
    first += _name_current(config)
    return Finding(
        rule="F10",
        severity=severity,
        why=f"the log's last error, which no rule explains: {error[:240]}"
        + (f"; it comes from the code of {users}" if users else ""),
        expects=f"{first}; look for this text in vLLM's issues and release notes before other changes",
        evidence={"line": error[:240]},
    )


def _name_current(config: ServeConfig) -> str:
    """A current release for one that is some releases behind, unless that has no kernels for the GPU."""
    present = release_of(config.version)
    capability = config.card.capability if config.card else None
    left = capability is not None and capability < _TURING
    if present is None or left or present >= (RELEASE[0], RELEASE[1] - _BEHIND):
        return ""
    return (
        f"; most such errors are faults of a release: compare a current one ({NAME}, here {config.version})"
    )


def _explain(
    error: str, raised: RaisedError, config: ServeConfig, severity: FindingSeverity, users: str
) -> Finding:
    causes = ", ".join(_causes(error, raised, config))
    own = (
        f"it comes from the code of {users}" if users else "the log's last error is one of vLLM's own checks"
    )
    first, last = format_release(raised.first), format_release(raised.last)
    releases = f"vLLM {last}" if first == last else f"vLLM {first} to {last}"
    depends = f"it depends on {causes}: " if causes else f"{own}: "
    to = read_asked_changes(error, config) if severity == "error" else {}  # else a client asked for it
    env = _requested_variables(error, config)
    missing = describe_missing_path(error, config)
    advice = missing or _advice(error, named=bool(causes))
    return Finding(
        rule="F10",
        klass="gated" if to or env else "note",
        severity=severity,
        to=to,
        env=env,
        why=f"{depends}{releases} raises in {raised.file}: {error[:300]}",
        source=f"vLLM {last} {raised.file}",
        expects="; ".join(filter(None, (advice, "" if missing else _newer(raised, config)))),
        evidence={"line": error[:240]},
    )


def _requested_variables(error: str, config: ServeConfig) -> dict[str, str | None]:
    """The variables that the message asks to set, but for those that lift a guard."""
    asked = {match["name"]: match["value"] for match in _SET.finditer(error) if "ALLOW" not in match["name"]}
    return {name: value for name, value in asked.items() if config.env.get(name) != value}


def _causes(error: str, raised: RaisedError, config: ServeConfig) -> list[str]:
    """The flags and variables that the error depends on, with their values."""
    words = set(re.findall(r"\b[a-z]\w*_\w+", error.replace("-", "_")))
    given = [knob for knob in config.setting if knob in words and knob not in raised.flags]
    variables = dict.fromkeys(re.findall(r"\bVLLM_[A-Z\d_]+", error))
    return [
        *(_in_use(knob, config) for knob in (*given, *raised.flags)),
        *(f"{name}={config.env[name]}" if name in config.env else f"{name} (not set)" for name in variables),
    ]


def _in_use(knob: Knob, config: ServeConfig) -> str:
    """The flag as the command has it, else with the default of the newest release."""
    name, value = f"--{knob.replace('_', '-')}", config.setting.get(knob)
    holder = next((flag for flag, facts in TABLE.items() if knob in facts.keys), None)
    if value is None and knob not in TABLE and holder:
        inside = json_entry(config, holder, knob)
        return f"{knob} of --{holder.replace('_', '-')} ({'not given' if inside is None else inside})"
    if isinstance(value, bool):
        return name if value else name.replace("--", "--no-", 1)
    if value is not None:
        return f"{name} {str(value)[:60]}"
    default = TABLE[knob].default if knob in TABLE else None
    return f"{name} (not given)" if default is None else f"{name} (not given; {NAME}: {default})"


def _advice(error: str, *, named: bool) -> str:
    """The sentences of the message with an instruction."""
    message = re.sub(r"^[\w.]*(?:Error|Exception|Value error|Assertion failed)[:,] ", "", error)
    sentences = re.split(r"(?<=[.!?;])\s+", message.partition(" [type=")[0])
    instructions = " ".join(sentence for sentence in sentences if _SAYS_WHAT_TO_DO.search(sentence))
    if instructions:
        return (
            f"what vLLM's message asks for: {instructions[:300]}"
            if len(sentences) > 1
            else "what the message says"
        )
    if named:
        return "check the named flags first: the message says no more"
    return "find its cause before other changes"


def _newer(raised: RaisedError, config: ServeConfig) -> str:
    """A remark where later releases do not have the message."""
    gone, present = next_release(raised.last), release_of(config.version)
    if gone is None or (present is not None and present >= gone):
        return ""
    return f"a newer release may do without the limit: the message is gone in vLLM {format_release(gone)}"


LINTS = (
    DeploymentCheck(
        rules=("F10", "F9"),
        find=_check_last_error,
        reports="the last error in the log, where no other rule explains it: the line is quoted, and for one "
        "of vLLM's own errors the flags that it depends on",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting/",
        needs=LOG,
    ),
)
