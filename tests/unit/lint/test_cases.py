"""Each rule of lint, each check of vLLM and the fixes of many commands: the tables of cases/*.txt."""

import pytest

from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints
from tests.support.case_tables import TableCase, read_tables
from tests.support.lint_cases import case, improved


@pytest.mark.parametrize("row", read_tables(), ids=lambda row: f"{row.place} {row.promise}")
def test_a_command_line_has_the_findings_of_its_row(row: TableCase) -> None:
    outcome = row.run()

    without_changes = row.checks == "fixes" and "=>" not in row.expected
    assert row.expected == (outcome.text.partition(" =>")[0] if without_changes else outcome.text)
    parts = "\n".join(f"{each.why}\n{each.expects}\n{each.risks}\n{each.source}" for each in outcome.findings)
    assert [text for text in row.texts if text not in parts] == []
    if "settles" in row.marks:
        assert row.run(improved(row.command, outcome.changes)).text.startswith("-")
    if "bare" in row.marks:
        bare = find_fixes(case(row.command, version=""), all_lints())
        assert {finding.severity for finding in bare.findings} <= {"info"}
