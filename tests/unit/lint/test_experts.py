"""D6, D7 and D8: experts and latent attention."""

from dataclasses import replace

import pytest

from flettner.lint.rules import memory
from flettner.lint.rules.experts import LINTS
from tests.support.lint_cases import (
    A100,
    A100_40,
    DEEPSEEK_R1,
    H200,
    MAVERICK,
    MIXTRAL,
    QWEN_235B,
    case,
    findings,
    rules,
)

V32 = replace(DEEPSEEK_R1, name="deepseek-ai/DeepSeek-V3.2-Exp")


def test_removes_expert_parallel_from_a_model_with_few_active_experts() -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 8 -ep", model=MAVERICK))
    assert (found.rule, found.to) == ("D6", {"enable_expert_parallel": None})
    assert "0.78%" in found.why


def test_advice_on_expert_exchange_stays_valid_without_expert_parallel() -> None:
    asked = case("vllm serve x -tp 8 -ep --gpu-memory-utilization 0.97", model=MAVERICK, card=H200)
    reported = findings((*LINTS, *memory.LINTS), asked)
    assert rules(reported) == ["D6", "M4"]
    after = {"tensor_parallel_size": 8, "gpu_memory_utilization": 0.85}
    assert not findings((*LINTS, *memory.LINTS), replace(asked, setting=after))


def test_profile_that_would_restore_expert_parallel_gets_the_reason() -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 8", model=MAVERICK, profile="wide-ep"))
    assert (found.rule, found.severity, dict(found.to)) == ("D6", "info", {})
    assert not findings(LINTS, case("vllm serve x -tp 8", model=MAVERICK, profile="batch"))


QWEN35 = replace(QWEN_235B, name="Qwen/Qwen3.5-397B-A17B", experts=512, active_experts=10)


@pytest.mark.parametrize("model", [DEEPSEEK_R1, QWEN_235B, QWEN35, MIXTRAL, None])
def test_keeps_expert_parallel_for_models_with_more_active_experts(model: object) -> None:
    assert "D6" not in rules(findings(LINTS, case("vllm serve x -tp 4 -ep", model=model)))


@pytest.mark.parametrize("model", [DEEPSEEK_R1, V32])
def test_mla_on_eight_gpus_becomes_data_parallel_with_expert_parallel(
    model: object,
) -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 8", model=model, card=H200))
    assert (found.rule, found.severity, found.to) == ("D7", "info", {})
    assert "--data-parallel-size 8 --enable-expert-parallel" in found.expects
    (busy,) = findings(LINTS, case("vllm serve x -tp 8", model=model, card=H200, profile="batch"))
    assert busy.severity == "warning"
    assert busy.to == {
        "tensor_parallel_size": 1,
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "gpu_memory_utilization": 0.85,
    }


def test_keeps_a_kv_cache_split_by_context_parallel() -> None:
    flags = "vllm serve x -tp 8 --decode-context-parallel-size 8"
    assert not findings(LINTS, case(flags, model=DEEPSEEK_R1, card=H200))


def test_expert_exchange_also_sets_the_memory_share() -> None:
    reported = findings(
        (*LINTS, *memory.LINTS), case("vllm serve x -tp 8", model=DEEPSEEK_R1, card=H200, profile="batch")
    )
    assert rules(reported) == ["D7"]
    assert reported[0].to["gpu_memory_utilization"] == 0.85
    low = "vllm serve x -tp 8 -ep --gpu-memory-utilization 0.85"
    (found,) = findings(LINTS, case(low, model=DEEPSEEK_R1, card=H200, profile="batch"))
    assert found.to == {"tensor_parallel_size": 1, "data_parallel_size": 8}


def test_keeps_mla_split_and_reports_it_if_data_parallel_does_not_fit() -> None:
    flags = "vllm serve x -tp 32 --nnodes 4"
    (found,) = findings(LINTS, case(flags, model=DEEPSEEK_R1, card=A100_40))
    assert (found.rule, found.severity, dict(found.to)) == ("D7", "info", {})
    assert "--decode-context-parallel-size 32" in found.expects
    shared = case(f"{flags} --decode-context-parallel-size 32", model=DEEPSEEK_R1, card=A100_40)
    assert not findings(LINTS, shared)
    assert findings(LINTS, case("vllm serve x -tp 32 --nnodes 4", model=DEEPSEEK_R1, card=A100))


def test_low_concurrency_outranks_mla_advice_unless_the_kernel_pads() -> None:
    assert rules(findings(LINTS, case("vllm serve x -tp 8", model=DEEPSEEK_R1, concurrency=64))) == ["D8"]
    assert rules(findings(LINTS, case("vllm serve x -tp 8", model=V32, concurrency=64)))[0] == "D7"


def test_keeps_a_good_mla_layout() -> None:
    assert not findings(LINTS, case("vllm serve x -dp 8 -ep", model=DEEPSEEK_R1, card=H200))
    assert not findings(LINTS, case("vllm serve x -tp 8", model=QWEN_235B, card=H200))
    assert not findings(LINTS, case("vllm serve x -tp 8"))


@pytest.mark.parametrize(
    ("flags", "concurrency", "reported"),
    [
        ("-tp 8", 600, ["D8"]),
        ("-tp 8", 256, []),
        ("-dp 8", 100, ["D8"]),
        ("-dp 8", 600, []),
        ("-tp 8", 100, []),
        ("-tp 8", None, []),
    ],
)
def test_reports_the_crossover_with_the_measured_concurrency(
    flags: str, concurrency: float | None, reported: list[str]
) -> None:
    found = findings(LINTS, case(f"vllm serve x {flags}", model=QWEN_235B, concurrency=concurrency))
    assert rules(found) == reported
    assert all(str(int(concurrency or 0)) in one.why for one in found)
