"""V2 and V3: what a version does with these flags."""

import pytest

from policies.lint_version import LINTS
from policies.regressions import REGRESSIONS
from tests.policies.cases import GB200, LLAMA_8B, MAMBA_9B, MI300X, QWEN_7B_AWQ, case, dense, findings, rules

OFFLOADS = "vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --kv-offloading-backend native --kv-offloading-size 62"
DISABLE = "disable_hybrid_kv_cache_manager"


@pytest.mark.parametrize("version", ["0.14.0", "0.16.0", "0.20.2"])
def test_offloading_without_the_switch_does_not_start_in_those_versions(version: str) -> None:
    (found,) = findings(LINTS, case(OFFLOADS, version=version, model=QWEN_7B_AWQ))
    assert (found.rule, found.severity, found.to) == ("V2", "error", {DISABLE: True})


@pytest.mark.parametrize("version", ["0.21.0", "0.32.0", "0.12.0", ""])
def test_offloading_needs_no_switch_in_other_versions(version: str) -> None:
    assert not findings(LINTS, case(OFFLOADS, version=version, model=QWEN_7B_AWQ))


def test_the_switch_that_was_needed_is_worth_a_word_today() -> None:
    (found,) = findings(LINTS, case(f"{OFFLOADS} --disable-hybrid-kv-cache-manager", model=QWEN_7B_AWQ))
    assert (found.severity, found.to) == ("info", {DISABLE: None})


def test_the_switch_stops_a_hybrid_model() -> None:
    (found,) = findings(LINTS, case(f"{OFFLOADS} --disable-hybrid-kv-cache-manager", model=MAMBA_9B))
    assert (found.severity, found.to) == ("error", {DISABLE: None})
    (found,) = findings(LINTS, case(OFFLOADS, version="0.16.0", model=MAMBA_9B))
    assert not found.to


def test_the_switch_in_its_own_version_and_another_backend_are_left_alone() -> None:
    asked = case(f"{OFFLOADS} --disable-hybrid-kv-cache-manager", version="0.14.0", model=QWEN_7B_AWQ)
    assert not findings(LINTS, asked)
    lmcache = OFFLOADS.replace("native", "lmcache")
    assert not findings(LINTS, case(lmcache, version="0.16.0"))


def test_a_known_regression_is_told_with_its_issue() -> None:
    minimax = dense("MiniMaxAI/MiniMax-M2.5", 230)
    (found,) = findings(LINTS, case("vllm serve x", version="0.15.1", model=minimax))
    assert (found.rule, found.klass) == ("V3", "note")
    assert "#35048" in found.why
    glm = dense("zai-org/GLM-4.7-FP8", 355)
    assert rules(findings(LINTS, case("vllm serve x", version="0.14.0", model=glm, card=MI300X))) == ["V3"]
    said = findings(LINTS, case("vllm serve x", version="0.18.0", model=LLAMA_8B, card=GB200))
    assert "verl" in said[0].source


def test_a_regression_is_told_to_nobody_else() -> None:
    minimax = dense("MiniMaxAI/MiniMax-M2.5", 230)
    for version in ("0.14.0", "0.32.0", ""):
        assert not findings(LINTS, case("vllm serve x", version=version, model=minimax))
    assert not findings(LINTS, case("vllm serve x", version="0.15.1", model=LLAMA_8B))
    assert not findings(LINTS, case("vllm serve x", version="0.15.1"))


def test_each_row_names_releases_in_order_and_where_it_shows() -> None:
    for row in REGRESSIONS:
        assert row.first <= row.last
        assert row.model or row.card
        assert "#" in row.issue
