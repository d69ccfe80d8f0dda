"""V2 and V3: defects and regressions of a version with given flags."""

import pytest

from flettner.lint.rules.version import LINTS
from flettner.vllm_facts.knobs import release_of
from flettner.vllm_facts.regressions import REGRESSIONS
from flettner.vllm_facts.releases import cite
from tests.support.lint_cases import (
    GB200,
    LLAMA_8B,
    MAMBA_9B,
    MI300X,
    QWEN_7B_AWQ,
    case,
    dense,
    findings,
    rules,
)
from tests.support.sources import faults

OFFLOADS = "vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --kv-offloading-backend native --kv-offloading-size 62"
DISABLE = "disable_hybrid_kv_cache_manager"


@pytest.mark.parametrize("version", ["0.14.0", "0.16.0", "0.20.2"])
def test_offloading_requires_the_flag_in_affected_versions(version: str) -> None:
    (found,) = findings(LINTS, case(OFFLOADS, version=version, model=QWEN_7B_AWQ))
    assert (found.rule, found.severity, found.to) == ("V2", "error", {DISABLE: True})


@pytest.mark.parametrize("version", ["0.21.0", "0.32.0", "0.12.0", ""])
def test_offloading_needs_no_flag_in_other_versions(version: str) -> None:
    assert not findings(LINTS, case(OFFLOADS, version=version, model=QWEN_7B_AWQ))


def test_notes_the_flag_in_versions_that_no_longer_need_it() -> None:
    (found,) = findings(LINTS, case(f"{OFFLOADS} --disable-hybrid-kv-cache-manager", model=QWEN_7B_AWQ))
    assert (found.severity, found.to) == ("info", {DISABLE: None})


def test_flag_prevents_the_start_of_a_hybrid_model() -> None:
    (found,) = findings(LINTS, case(f"{OFFLOADS} --disable-hybrid-kv-cache-manager", model=MAMBA_9B))
    assert (found.severity, found.to) == ("error", {DISABLE: None})
    (found,) = findings(LINTS, case(OFFLOADS, version="0.16.0", model=MAMBA_9B))
    assert not found.to


def test_keeps_the_flag_in_affected_versions_and_other_backends() -> None:
    asked = case(f"{OFFLOADS} --disable-hybrid-kv-cache-manager", version="0.14.0", model=QWEN_7B_AWQ)
    assert not findings(LINTS, asked)
    lmcache = OFFLOADS.replace("native", "lmcache")
    assert not findings(LINTS, case(lmcache, version="0.16.0"))


def test_reports_a_known_regression_with_its_issue() -> None:
    minimax = dense("MiniMaxAI/MiniMax-M2.5", 230)
    (found,) = findings(LINTS, case("vllm serve x", version="0.15.1", model=minimax))
    assert (found.rule, found.klass) == ("V3", "note")
    assert "#35048" in found.why
    glm = dense("zai-org/GLM-4.7-FP8", 355)
    assert rules(findings(LINTS, case("vllm serve x", version="0.14.0", model=glm, card=MI300X))) == ["V3"]
    reported = findings(LINTS, case("vllm serve x", version="0.18.0", model=LLAMA_8B, card=GB200))
    assert "verl" in reported[0].source


def test_does_not_report_a_regression_elsewhere() -> None:
    minimax = dense("MiniMaxAI/MiniMax-M2.5", 230)
    for version in ("0.14.0", "0.32.0", ""):
        assert not findings(LINTS, case("vllm serve x", version=version, model=minimax))
    assert not findings(LINTS, case("vllm serve x", version="0.15.1", model=LLAMA_8B))
    assert not findings(LINTS, case("vllm serve x", version="0.15.1"))


def test_each_row_has_ordered_releases_and_a_condition() -> None:
    for row in REGRESSIONS:
        first, last = release_of(row.first), release_of(row.last)
        assert first
        assert last
        assert first <= last
        assert row.model or row.card or row.knob or row.env
        assert not faults(cite(row.issue))


@pytest.mark.parametrize(
    ("command", "version", "issue"),
    [
        ("vllm serve openai/gpt-oss-120b", "0.17.1", "#40838"),
        ("vllm serve Qwen/Qwen3.6-35B-A3B-FP8", "0.24.0", "#51663"),
        ("vllm serve Qwen/Qwen3-Embedding-8B", "0.26.0", "#52630"),
        ("vllm serve m --async-scheduling", "0.11.0", "#27878"),
        ("vllm serve mistralai/Ministral-3-3B-Instruct-2512 --kv-cache-dtype fp8_e4m3", "0.25.1", "#48945"),
        ("vllm serve zai-org/GLM-5.3 -dcp 8", "0.29.0", "#54300"),
        ("vllm serve Qwen/Qwen3-VL-8B-Instruct --max-num-queued-reqs 64", "0.32.0", "#58192"),
        ("vllm serve m --kv-offloading-size 8", "0.22.1", "#45388"),
    ],
)
def test_reports_a_defect_for_its_flags_and_model(command: str, version: str, issue: str) -> None:
    (found,) = findings(LINTS, case(command, version=version))

    assert issue in found.why


@pytest.mark.parametrize(
    ("command", "version"),
    [
        ("vllm serve openai/gpt-oss-120b", "0.20.0"),
        ("vllm serve m --async-scheduling", "0.11.1"),
        ("vllm serve m --no-async-scheduling", "0.11.0"),
        ("vllm serve mistralai/Ministral-3-3B-Instruct-2512", "0.25.1"),
        ("vllm serve zai-org/GLM-5.3 -dcp 1", "0.29.0"),
        ("vllm serve openai/gpt-oss-20b", "0.22.0"),
    ],
)
def test_does_not_report_a_defect_without_its_flags_and_model(command: str, version: str) -> None:
    assert not findings(LINTS, case(command, version=version))


def test_reports_a_defect_of_a_variable() -> None:
    (found,) = findings(LINTS, case("vllm serve m", env="VLLM_ENABLE_STARTUP_PLAN=1"))

    assert "startup_plan" in found.expects
