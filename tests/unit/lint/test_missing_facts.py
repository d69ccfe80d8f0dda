"""Rules without their facts are not judged, and a change that depends on a missing fact is a note."""

from typing import Any

import pytest

from flettner.lint.fixes import find_fixes
from flettner.lint.missing_facts import FACTS, find_missing, judge_coverage
from flettner.lint.rules import all_lints
from tests.support.lint_cases import H100, LLAMA_8B, case, dense


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        pytest.param("vllm serve m --gpu-memory-utilization 0.98", "M4", id="a smaller share of memory"),
        pytest.param("vllm serve m --gpu-memory-utilization 0.5", "M5", id="a larger share of memory"),
        pytest.param("vllm serve m --max-num-batched-tokens 256", "B3", id="larger steps"),
        pytest.param("vllm serve m --attention-backend FLASHINFER", "H3", id="another attention backend"),
    ],
)
def test_change_that_depends_on_unknown_memory_is_a_note_with_the_option_to_give(
    command: str, rule: str
) -> None:
    fixes = find_fixes(case(command), all_lints())

    (note,) = [finding for finding in fixes.findings if finding.rule == rule]
    assert (note.klass, dict(note.to), dict(fixes.to)) == ("note", {}, {})
    assert "not proposed" in note.expects
    assert "--gpu NAME" in note.expects


def test_variable_that_newer_releases_ignore_is_a_note_where_the_release_is_unknown() -> None:
    fixes = find_fixes(case("vllm serve m", version="", env="VLLM_SLEEP_WHEN_IDLE=1"), all_lints())

    assert [(note.rule, note.klass) for note in fixes.findings] == [("V1", "note")]
    assert not fixes.env


def test_same_change_is_proposed_once_the_facts_are_known() -> None:
    config = case("vllm serve m --gpu-memory-utilization 0.98", card=H100, gpus=1, model=LLAMA_8B)

    assert find_fixes(config, all_lints()).to == {"gpu_memory_utilization": 0.92}


def test_split_of_unknown_heads_is_not_judged() -> None:
    judged = judge_coverage(case("vllm serve m --tensor-parallel-size 8", card=H100, gpus=8), all_lints())

    assert "model" in judged.lacking["D3"]


def test_rules_without_their_facts_are_in_the_order_of_their_numbers() -> None:
    rules = judge_coverage(case("vllm serve m"), all_lints()).by_fact()["log"]

    assert rules.index("F2") < rules.index("F10") < rules.index("K1")


def test_removed_flag_keeps_its_place_while_the_version_is_unknown() -> None:
    fixes = find_fixes(case("vllm serve m --enable-reasoning", version=""), all_lints())

    (note,) = fixes.findings
    assert (note.rule, dict(note.to)) == ("V1", {})
    assert "--vllm-version V" in note.expects


def test_misspelled_flag_is_corrected_for_every_version() -> None:
    fixes = find_fixes(case("vllm serve m --max-num-seq-s 64", version=""), all_lints())

    assert fixes.to == {"max_num_seq_s": None, "max_num_seqs": 64}


def test_model_of_unknown_size_lacks_its_size() -> None:
    config = case("vllm serve m", card=H100, gpus=1, model=dense("m", 8, parameters=None))

    judged = judge_coverage(config, all_lints())

    assert judged.lacking["L1"] == ("model_size",)
    assert not judged.is_complete


def test_fully_described_deployment_lacks_nothing() -> None:
    config = case("vllm serve m", card=H100, gpus=1, model=LLAMA_8B, profile="chat", log=("a line",))

    assert find_missing(config, FACTS) == ()
    assert judge_coverage(config, all_lints()).lacking == {}


def test_rule_that_reads_the_log_besides_the_command_is_checked_without_a_log() -> None:
    judged = judge_coverage(case("vllm serve m", card=H100, gpus=1, model=LLAMA_8B), all_lints())

    assert {"V1", "H2"} <= set(judged.checked)
    assert judged.lacking["F6"] == ("log",)


def test_each_rule_is_either_checked_or_lacking() -> None:
    judged = judge_coverage(case("vllm serve m", version=""), all_lints())

    rules = {rule for lint in all_lints() for rule in lint.rules}
    assert set(judged.checked) | judged.lacking.keys() == rules
    assert not set(judged.checked) & judged.lacking.keys()


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param({"env": "VLLM_CPU_KVCACHE_SPACE=20"}, id="by a variable"),
        pytest.param({"log": ("INFO Automatically detected platform cpu.",)}, id="by the log"),
    ],
)
def test_server_on_cpus_is_judged_by_no_rule_about_gpus(shown: dict[str, Any]) -> None:
    config = case("vllm serve Qwen/Qwen3-8B -tp 4", version="0.12.0", model=LLAMA_8B, **shown)

    assert find_fixes(config, all_lints()).findings == ()
    assert not {"gpu", "gpus", "gpu_memory"} & judge_coverage(config, all_lints()).by_fact().keys()


def test_variable_for_cpus_counts_for_nothing_beside_a_gpu() -> None:
    config = case("vllm serve m -tp 3", env="VLLM_CPU_KVCACHE_SPACE=20", card=H100, gpus=3, model=LLAMA_8B)

    assert "D3" in {finding.rule for finding in find_fixes(config, all_lints()).findings}
