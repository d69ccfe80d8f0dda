"""Tables of command lines with the findings that each must have: tests/unit/lint/cases/*.txt.

A table begins with `checks:`, the modules of lint.rules that it runs ("vllm" runs vLLM's own checks), and
`serve:`, the words after `vllm serve` of each case that begins with a flag. Then each line at the margin is a
promise, and the indented lines below it are its cases, in columns with " | " between them:

- the words of the command line;
- the facts: GPU and model by their names in tests.support.lint_cases, and `name=value` for a field of
  ServeConfig or else of the model, or for an environment variable; `checks=` replaces that of the table;
- the findings in order, with "; " between them: rule, class and severity (a check of vLLM has neither), and
  the changes, where `flag=` removes a flag. "-" means no finding. "settles" at the end means that the command
  with the changes has no finding;
- texts, each of which is part of a finding.
"""

import shlex
from ast import literal_eval
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from flettner.vllm_facts.releases import NAME
from flettner.vllm_facts.serve_config import Finding, GpuModel, Model, ServeConfig
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.validity.refusal import InvalidSetting
from tests.support import lint_cases

CASES = Path(__file__).parents[1] / "unit" / "lint" / "cases"
_FACTS = {fact.name for fact in fields(ServeConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCase:
    """One line of a table."""

    place: str
    promise: str
    checks: tuple[str, ...]
    command: str
    facts: dict[str, Any] = field(default_factory=dict)
    expected: list[list[str]]
    texts: tuple[str, ...] = ()
    settles: bool = False

    def config(self) -> ServeConfig:
        return lint_cases.case(self.command, **self.facts)

    def findings(self, config: ServeConfig) -> Sequence[Finding | InvalidSetting]:
        if self.checks == ("vllm",):
            problems = list(find_problems(config))
            assert all(problem.source.startswith(NAME) for problem in problems)
            return problems
        modules = [import_module(f"flettner.lint.rules.{name}") for name in self.checks]
        return lint_cases.findings([lint for module in modules for lint in module.LINTS], config)


def read_tables() -> list[TableCase]:
    return [case for path in sorted(CASES.glob("*.txt")) for case in _read_table(path)]


def _read_table(path: Path) -> Iterator[TableCase]:
    checks, serve, *lines = path.read_text().splitlines()
    own_checks, words, promise = checks.partition(": ")[2], serve.partition(": ")[2], ""
    for number, line in enumerate(lines, 3):
        if not line.startswith(" "):
            promise = line
            continue
        command, facts, findings, *texts = line[4:].split(" | ")
        known = _read_facts(facts)
        parts = [] if findings == "-" else findings.split("; ")
        yield TableCase(
            place=f"{path.name}:{number}",
            promise=promise,
            checks=tuple(known.pop("checks", own_checks).split(",")),
            command=f"vllm serve {words if command.startswith('-') or not command else ''} {command}",
            facts=known,
            expected=[shlex.split(part) for part in parts if part != "settles"],
            texts=tuple(texts),
            settles="settles" in parts,
        )


def _read_facts(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    variables: list[str] = []
    log: list[str] = []
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not equals:
            known = getattr(lint_cases, name)
            facts |= {"card": known} if isinstance(known, GpuModel) else {"model": known}
        elif name.isupper():
            variables.append(word)
        elif name == "log":
            log.append(value)
        elif name == "checks" or name in _FACTS:
            facts[name] = _typed(value) if name in ("gpus", "concurrency") else value
        else:
            model: Model = facts["model"]
            facts["model"] = replace(model, **{name: _typed(value)})
    return facts | ({"env": " ".join(variables)} if variables else {}) | ({"log": tuple(log)} if log else {})


def _typed(text: str) -> Any:  # noqa: ANN401 - a field of Model or ServeConfig
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text
