"""Each rule of lint, and each refusal of vLLM, on the command lines of cases/*.txt."""

import pytest

from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.validity.refusal import InvalidSetting
from tests.support.case_tables import TableCase, read_tables
from tests.support.lint_cases import case, improved


def row_of(finding: Finding | InvalidSetting) -> list[str]:
    """The finding as a table has it."""
    kind = [finding.klass, finding.severity] if isinstance(finding, Finding) else []
    changes = {**finding.to, **finding.env}
    return [finding.rule, *kind, *(f"{k}={'' if v is None else v}" for k, v in changes.items())]


@pytest.mark.parametrize("row", read_tables(), ids=lambda row: f"{row.place} {row.promise}")
def test_a_command_line_has_the_findings_of_its_row(row: TableCase) -> None:
    config = row.config()

    findings = row.findings(config)

    assert [row_of(finding) for finding in findings] == row.expected
    said = "\n".join(f"{each.why}\n{each.expects}\n{each.risks}\n{each.source}" for each in findings)
    assert [text for text in row.texts if text not in said] == []
    if row.settles:
        assert not row.findings(case(improved(row.command, findings), **row.facts))
