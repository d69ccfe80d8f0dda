"""Every rule names something that a reader can open."""

from pathlib import Path

import pytest

from flettner.vllm_facts.releases import NAME, cite
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck
from tests.support.sources import PRIVATE, code_of, documented_checks, evidence_faults, faults, source_texts


@pytest.mark.parametrize("lint", documented_checks(), ids=lambda lint: f"{lint.rules[0]} {lint.reports[:40]}")
def test_each_check_says_what_it_reports_and_on_what_grounds(lint: DeploymentCheck) -> None:
    assert lint.reports
    assert not faults(cite(lint.source))
    assert not evidence_faults(lint.evidence_for)
    assert not evidence_faults(lint.evidence_against)


def test_no_source_of_a_rule_a_policy_or_a_fact_is_private() -> None:
    texts = source_texts()
    assert "lint/rules/offloading.py" in {where.partition(":")[0] for where in texts}
    assert not {where: unreadable for where, text in texts.items() if (unreadable := faults(text))}


def test_no_source_names_the_newest_release() -> None:
    """`cite` adds it, so that a new release is one new table and no edit of each rule."""
    texts = {path: path.read_text() for path in code_of("lint", "policies", "vllm_facts", "rules")}

    assert [str(path) for path, text in texts.items() if f"{NAME} vllm/" in text] == []
    assert cite("vllm/envs.py; vllm-project/vllm#1") == f"{NAME} vllm/envs.py; vllm-project/vllm#1"
    assert cite("vLLM 0.14 vllm/envs.py: a") == "vLLM 0.14 vllm/envs.py: a"


@pytest.mark.parametrize("path", code_of("lint", "policies", "vllm_facts"), ids=str)
def test_no_line_names_a_document_that_no_reader_has(path: Path) -> None:
    assert not [line for line in path.read_text().splitlines() if PRIVATE.search(line)]
