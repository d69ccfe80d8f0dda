"""Findings as text and as JSON, with the improved command line ready to paste."""

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flettner.lint.fixes import Fixes, build_rows
from flettner.lint.missing_facts import FACTS, Judged
from flettner.rules.table import HEALTH, name_of, slug_of
from flettner.tools.terminal.values import escape_text, format_value
from flettner.vllm_facts.config_file import UnsupportedEdit
from flettner.vllm_facts.flag_table import is_switch
from flettner.vllm_facts.live_limits import CONTROL, LIVE, NEEDED, SCHEDULER_CLASS
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.shell_command.docker_run import option_variables
from flettner.vllm_facts.shell_command.serve_command import ServeCommand
from flettner.vllm_facts.shell_command.shell import join_redirections, quote_word
from flettner.vllm_facts.values import Knob, Setting, Value

HEADS = {
    "health": "HEALTH: to be repaired before anything is tuned",
    "error": "ERRORS: the server does not start, or gives wrong answers",
    "warning": "WARNINGS: cost in speed, memory or safety",
    "info": "NOTES",
}
NARROW, WIDE = 60, 110
_UNSET = "(unset)"


def as_row(
    fixes: Fixes,
    config: ServeConfig,
    command: ServeCommand | None,
    *,
    assumed: Mapping[Knob, Value],
    unknown: Iterable[str],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fixes as a JSON object; `more` is added."""
    rows = [row for finding in fixes.findings for row in build_rows(finding, config, assumed)]
    outranked = [
        {
            "rule": lost.what.rule,
            "slug": slug_of(lost.what.rule),
            "by": lost.by,
            "by_slug": slug_of(lost.by),
            "why": lost.why,
            "said": lost.what.why,
        }
        for lost in fixes.outranked
    ]
    return {
        "findings": rows,
        "command": command.words if command else None,
        "env": dict(command.env) if command else {},
        "outranked": outranked,
        "later": list(fixes.later),
        "unknown": list(unknown),
        **more,
    }


def as_text(
    fixes: Fixes, config: ServeConfig, *, assumed: Mapping[Knob, Value], width: int | None = None
) -> str:
    """Return the findings by heading, each with change, reason and source; empty if there are none."""
    width = width or _width()
    parts = []
    for heading, head in HEADS.items():
        findings = [finding for finding in fixes.findings if _heading(finding) == heading]
        if findings:
            parts.append(head + "\n")
            parts += [_finding(finding, config, assumed, width) for finding in findings]
    parts += [
        _line("outranked", f"{name_of(lost.what.rule)} by {name_of(lost.by)}: {lost.why}", width)
        for lost in fixes.outranked
    ]
    parts += [_line("later", text, width) for text in fixes.later]
    return "\n".join(parts)


def format_improved(command: ServeCommand, still: Sequence[str], undone: Sequence[UnsupportedEdit]) -> str:
    """Return the command to paste, and the problems that remain with it."""
    width = _width()
    head = "THE COMMAND WITH THESE CHANGES"
    if still:
        head += f" STILL HAS ERRORS: SEE {', '.join(map(name_of, still))}"
    elif undone:
        head += f", IN ADDITION TO EDITS IN {escape_text(undone[0].file)}"
    text = f"{head}\n{format_command(command, width)}"
    lines = ", ".join(f"`{line.key}: {format_value(line.value)}`" for line in undone)
    if lines:
        hint = f"{undone[0].file}: remove {lines}; no command-line flag overrides it"
        text += "\n" + _line("edit", hint, width)
    elif command.file:
        text += "\n" + _line(
            "note", "flags on the command line take precedence over the --config file", width
        )
    return text


def format_live_limits(changed: Iterable[Knob], setting: Setting, env: Mapping[str, str]) -> str:
    """Say what saves the next restart, if these changes are of limits that need none; else return no text."""
    if setting.get("scheduler_cls") == SCHEDULER_CLASS and CONTROL not in env:
        hint = (
            f"without {CONTROL}=/PATH/control.sock no limit changes later without a restart; the daemon adds "
            "it to a server that it starts (docs/live-limits.md)"
        )
    elif "scheduler_cls" not in setting and LIVE.intersection(changed):
        hint = f"with {NEEDED} such limits change later without a restart (docs/live-limits.md)"
    else:
        return ""
    return _line("note", hint, _width())


def format_no_command(still: Sequence[str]) -> str:
    """Return the reason why no command is printed."""
    return f"NO COMMAND: IT WOULD STILL NOT START: SEE {', '.join(map(name_of, still))}\n"


def format_command(command: ServeCommand, width: int | None = None) -> str:
    """Return the command for a shell, wrapped to the terminal between flags."""
    limit = (width or _width()) - len(" \\")
    lines, line = [], ""
    for chunk in [*command.assignments, *_chunks(command)]:
        if line and len(line) + 1 + len(chunk) > limit:
            lines.append(line)
            line = "    " + chunk
        else:
            line = f"{line} {chunk}" if line else chunk
    aside = f" {join_redirections(command.aside)}" if command.aside else ""
    return " \\\n".join([*lines, line]) + aside + "\n"


def _chunks(command: ServeCommand) -> list[str]:
    """Join each flag with its value, quoted: `--max-num-seqs 64`."""
    chunks: list[str] = []
    options = option_variables(command.before)
    for word in command.words:
        last = chunks[-1] if chunks else ""
        joins = last.startswith("-") and " " not in last and "=" not in last and not word.startswith("-")
        quoted = word if word in options else quote_word(word, live=command.live)
        if joins or chunks in (["vllm"], ["docker"], ["vllm serve"]):
            chunks[-1] = f"{last} {quoted}"
        else:
            chunks.append(quoted)
    return chunks


def _heading(finding: Finding) -> str:
    return "health" if finding.rule in HEALTH else finding.severity


def _finding(finding: Finding, config: ServeConfig, assumed: Mapping[Knob, Value], width: int) -> str:
    head = f"  {name_of(finding.rule)}  {_change(finding, config, assumed)}  [{finding.klass}]\n"
    lines = [
        ("why", finding.why),
        ("observed", _format_evidence(finding.evidence)),
        ("expects", finding.expects),
        ("risks", finding.risks),
        ("source", finding.source),
    ]
    return head + "".join(_line(label, text, width, indent=6) for label, text in lines if text)


def _change(finding: Finding, config: ServeConfig, assumed: Mapping[Knob, Value]) -> str:
    """`max_num_seqs 2 -> 16, VLLM_X 1 -> (unset)`"""
    before = {**assumed, **config.setting}
    changes = [
        (knob, _present(knob, before.get(knob)), format_value(new)) for knob, new in finding.to.items()
    ]
    changes += [
        (name, config.env.get(name, _UNSET), _UNSET if new is None else new)
        for name, new in finding.env.items()
    ]
    text = ", ".join(f"{name} {old} -> {new}" for name, old, new in changes)
    return escape_text(text) or "no flag to change"


def _present(knob: Knob, present: Value) -> str:
    lacks_value = present is True and "." not in knob and not is_switch(knob)
    return "(no value)" if lacks_value else format_value(present)


def _format_evidence(evidence: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {_format_number(item)}" for name, item in evidence.items() if item is not None)


def _format_number(number: Value) -> str:
    return f"{number:g}" if isinstance(number, float) else escape_text(str(number)[:80])


def _line(label: str, text: str, width: int, *, indent: int = 2) -> str:
    start = f"{' ' * indent}{label:10}"
    rest = " " * len(start)
    wrapped = textwrap.TextWrapper(
        width,
        initial_indent=start,
        subsequent_indent=rest,
        break_long_words=False,  # an address stays whole
        break_on_hyphens=False,
    )
    return wrapped.fill(escape_text(text)) + "\n"


def _width() -> int:
    return max(NARROW, min(WIDE, shutil.get_terminal_size().columns))


def format_no_findings(judged: Judged, config: ServeConfig, unread: Sequence[str]) -> str:
    """Return the checked rules, and those that could not be judged."""
    head = (
        "no findings"
        if judged.is_complete and not unread
        else "NOT JUDGED: no findings, but some rules lack facts"
    )
    checked = _line("checked", f"rules {', '.join(judged.checked) or 'none'}", _width())
    return f"{head}\n{checked}{format_not_judged(judged, config, unread)}"


def format_not_judged(judged: Judged, config: ServeConfig, unread: Sequence[str]) -> str:
    """Return each missing fact with its option, and the rules that are not judged without it."""
    texts = [f"for all rules: {place}" for place in unread]
    texts += [
        f"{FACTS[fact].describe(config)}, for the rules {', '.join(rules)}"
        for fact, rules in judged.by_fact().items()
    ]
    return "".join(_line("missing", text, _width()) for text in texts)


def format_unknown(unknown: Sequence[str]) -> str:
    return _line("unknown", "; ".join(unknown), _width()) if unknown else ""
