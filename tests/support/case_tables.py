"""Tables of command lines with the findings that each must have: tests/unit/lint/cases/*.txt.

A table begins with `checks:` and `serve:`. `checks:` lists modules of lint.rules, or is "all" for all of
them, "vllm" for vLLM's own checks, or "fixes" for find_fixes with the model that the command names. `serve:`
holds the words after `vllm serve` of each case that begins with a flag. A line `NAME = text` defines a log
line. Each other line at the margin is a promise, and the indented lines below it are its cases, in columns
with " | " between them:

- the words of the command line;
- the facts: GPU and model by their names in tests.support.lint_cases, or `gpu=` and a name for find_gpu;
  `name=value` for a field of ServeConfig or else of the model, or for an environment variable; `log=` for a
  line of the log, by its name or as it is; `checks=` in place of that of the table;
- the findings in order, with "; " between them: rule, class and severity (a check of vLLM has neither), and
  the changes, where `flag=` removes a flag; "-" means none. Fixes are the rules, those of severity info in
  brackets, and after "=>" the changes. "settles" at the end: with the changes no finding is left (of fixes,
  none above info); "bare": without the facts there is none above info;
- texts, each of which is part of a finding.
"""

import shlex
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from flettner.lint.fixes import Fixes, find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.releases import NAME
from flettner.vllm_facts.serve_config import Finding, GpuModel, ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.validity.refusal import InvalidSetting
from tests.support import lint_cases

CASES = Path(__file__).parents[1] / "unit" / "lint" / "cases"
_FACTS = {fact.name for fact in fields(ServeConfig)}
_NUMBERS = frozenset({"gpus", "hosts", "concurrency", "shared_memory_gib"})
_MARKS = frozenset({"settles", "bare"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of a command line, as a table has them and as they are."""

    text: str
    findings: Sequence[Finding | InvalidSetting]
    changes: Sequence[Finding | InvalidSetting | Fixes]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCase:
    """One line of a table."""

    place: str
    promise: str
    checks: str
    command: str
    facts: Mapping[str, Any]
    expected: str
    marks: frozenset[str]
    texts: tuple[str, ...]

    def run(self, command: str = "") -> Outcome:
        config = lint_cases.case(command or self.command, **self.facts)
        if self.checks == "fixes":
            fixes = find_fixes(config, all_lints())
            return Outcome(_describe_fixes(fixes), fixes.findings, [fixes])
        findings = list(self._findings(config))
        return Outcome("; ".join(map(_describe_finding, findings)) or "-", findings, findings)

    def _findings(self, config: ServeConfig) -> Sequence[Finding | InvalidSetting]:
        if self.checks == "vllm":
            problems = list(find_problems(config))
            assert all(problem.source.startswith(NAME) for problem in problems)
            return problems
        names = [] if self.checks == "all" else self.checks.split(",")
        modules = [import_module(f"flettner.lint.rules.{name}") for name in names]
        lints = [lint for module in modules for lint in module.LINTS] or all_lints()
        return lint_cases.findings(lints, config)


def _describe_finding(finding: Finding | InvalidSetting) -> str:
    kind = (finding.klass, finding.severity) if isinstance(finding, Finding) else ()
    return shlex.join((finding.rule, *kind, *_changes(finding)))


def _describe_fixes(fixes: Fixes) -> str:
    above = [finding.rule for finding in fixes.findings if finding.severity != "info"] or ["-"]
    infos = [finding.rule for finding in fixes.findings if finding.severity == "info"]
    brackets = [f"({' '.join(infos)})"] if infos else []
    return " ".join(
        [*above, *brackets, *(["=>", shlex.join(_changes(fixes))] if fixes.to or fixes.env else [])]
    )


def _changes(finding: Finding | InvalidSetting | Fixes) -> list[str]:
    changes = {**finding.to, **finding.env}
    return [f"{name}={'' if value is None else value}" for name, value in changes.items()]


def read_tables() -> list[TableCase]:
    return [case for path in sorted(CASES.glob("*.txt")) for case in _read_table(path)]


def _read_table(path: Path) -> Iterator[TableCase]:
    checks, serve, *lines = path.read_text().splitlines()
    words, promise = serve.partition(": ")[2], ""
    log_lines: dict[str, str] = {}
    for number, line in enumerate(lines, 3):
        name, defines, text = line.partition(" = ")
        if defines and name.isupper():
            log_lines[name] = text
        elif not line.startswith(" "):
            promise = line
        else:
            command, facts, findings, *texts = line[4:].split(" | ")
            parts = findings.split("; ")
            base = words if command.startswith("-") or not command else ""
            command = f"vllm serve {base} {command}" if base else f"vllm serve {command}"
            values = {"checks": checks.partition(": ")[2]} | _read_facts(facts, log_lines)
            if values["checks"] == "fixes":
                values.setdefault("model", find_model(shlex.split(command)[2]))
            yield TableCase(
                place=f"{path.name}:{number}",
                promise=promise,
                checks=values.pop("checks"),
                command=command,
                facts=values,
                expected="; ".join(part for part in parts if part not in _MARKS),
                marks=frozenset(parts) & _MARKS,
                texts=tuple(texts),
            )


def _read_facts(text: str, log_lines: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    variables: list[str] = []
    log: list[str] = []
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not equals:
            constant = getattr(lint_cases, name)
            facts |= {"card": constant} if isinstance(constant, GpuModel) else {"model": constant}
        elif name.isupper():
            variables.append(word)
        elif name == "log":
            log.append(log_lines.get(value, value))
        elif name == "gpu":
            facts["card"] = find_gpu(value)
        elif name == "checks" or name in _FACTS:
            facts[name] = typed(value) if name in _NUMBERS else value
        else:
            facts["model"] = replace(facts["model"], **{name: typed(value)})
    if log:
        facts["log"] = ("INFO the first line", *log, "INFO the last line")
    return facts | ({"env": " ".join(variables)} if variables else {})


def typed(text: str) -> Any:  # noqa: ANN401 - a field of Model or ServeConfig, or a value of a flag
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return text if isinstance(value, dict) else value  # JSON
