"""Public issues about vLLM as cases: their command, GPU and log lines, and the rule that comes first.

The cases are in issues.txt: the flags as given, single log lines, the address of the issue.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from flettner.lint.fixes import Fixes, find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.estimate import estimate_model
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Value
from tests.support.case_tables import typed

LINTS = all_lints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """`first`: the rule that comes first; empty: nothing may change, as the fault is vLLM's or there is none.

    `to` and `without`: values and removed flags among the changes. `never`: knobs that stay.
    """

    url: str
    command: str
    first: str
    gpu: str
    gpus: int | None
    version: str
    log: tuple[str, ...]
    to: Mapping[str, Value]
    without: tuple[str, ...]
    never: tuple[str, ...]

    def fixes(self) -> Fixes:
        return find_fixes(self.deployment(), LINTS)

    def deployment(self) -> ServeConfig:
        parsed = parse_command(shlex.split(self.command))
        name = str(parsed.setting.get("model", ""))
        model = find_model(name)
        return ServeConfig(
            setting=parsed.setting,
            env=parsed.server_env,
            card=find_gpu(self.gpu) if self.gpu else None,
            gpus=self.gpus,
            model=model,
            estimate=None if model else estimate_model(name),
            version=self.version,
            log=self.log,
        )


def _read_issue(head: str, body: str) -> Issue:
    url, _, command = head.partition(": ")
    words, expected = map(shlex.split, body.split(" | "))
    facts = [word.split("=", 1) for word in words]
    host = dict(facts)
    changes = dict(word.split("=", 1) for word in expected[1:] if not word.startswith("!"))
    return Issue(
        url=url,
        command=command,
        first=expected[0].removeprefix("-"),
        gpu=host.get("gpu", ""),
        gpus=int(host["gpus"]) if "gpus" in host else None,
        version=host.get("version", ""),
        log=tuple(text for name, text in facts if name == "log"),
        to={knob: typed(value) for knob, value in changes.items() if value},
        without=tuple(knob for knob, value in changes.items() if not value),
        never=tuple(word[1:] for word in expected if word.startswith("!")),
    )


LINES = Path(__file__).with_name("issues.txt").read_text().splitlines()
CASES = [_read_issue(head, body) for head, body in pairwise(LINES) if body.startswith(" ")]
ISSUES = tuple(issue for issue in CASES if issue.first)
QUIET = tuple(issue for issue in CASES if not issue.first)


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.url)
def test_rule_that_an_issue_needs_comes_first(issue: Issue) -> None:
    fixes = issue.fixes()
    shown = [(finding.rule, finding.why) for finding in fixes.findings]

    assert shown
    assert shown[0][0] == issue.first, shown
    changes = {**issue.to, **dict.fromkeys(issue.without)}
    assert {knob: fixes.to.get(knob, "unchanged") for knob in changes} == changes
    assert not set(issue.never) & fixes.to.keys()


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.url)
def test_advice_on_an_issue_brings_no_new_error(issue: Issue) -> None:
    before = issue.deployment()
    after = issue.fixes().after(before)

    def errors(case: ServeConfig) -> set[str]:
        fixes = find_fixes(ServeConfig(setting=case.setting, card=case.card, model=case.model), LINTS)
        return {finding.why for finding in fixes.findings if finding.severity == "error"}

    assert not errors(after) - errors(before)


@pytest.mark.parametrize("issue", QUIET, ids=lambda issue: issue.url)
def test_nothing_changes_where_no_flag_is_at_fault(issue: Issue) -> None:
    fixes = issue.fixes()

    assert not fixes.to
    assert not fixes.env


def test_a_hundred_issues_are_cases() -> None:
    assert len({issue.url for issue in CASES}) >= 95
