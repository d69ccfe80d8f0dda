"""D6, D7 and D8: experts and latent attention."""

from dataclasses import replace

import pytest

from policies.lint_experts import LINTS
from tests.policies.cases import (
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


def test_expert_parallel_is_taken_from_a_model_of_which_little_works() -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 8 -ep", model=MAVERICK))
    assert (found.rule, found.to) == ("D6", {"enable_expert_parallel": None})
    assert "0.78%" in found.why


@pytest.mark.parametrize("model", [DEEPSEEK_R1, QWEN_235B, MIXTRAL, None])
def test_expert_parallel_is_left_to_models_of_which_more_works(model: object) -> None:
    assert "D6" not in rules(findings(LINTS, case("vllm serve x -tp 4 -ep", model=model)))


@pytest.mark.parametrize("model", [DEEPSEEK_R1, V32])
def test_latent_attention_over_eight_gpus_becomes_data_parallel_with_experts_shared_out(
    model: object,
) -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 8", model=model, card=H200))
    assert (found.rule, found.severity) == ("D7", "warning")
    assert found.to == {
        "tensor_parallel_size": 1,
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
    }


def test_few_requests_at_once_outrank_that_unless_the_kernel_pads() -> None:
    assert rules(findings(LINTS, case("vllm serve x -tp 8", model=DEEPSEEK_R1, concurrency=64))) == ["D8"]
    assert rules(findings(LINTS, case("vllm serve x -tp 8", model=V32, concurrency=64)))[0] == "D7"


def test_latent_attention_that_is_laid_out_well_is_left_alone() -> None:
    assert not findings(LINTS, case("vllm serve x -dp 8 -ep", model=DEEPSEEK_R1, card=H200))
    assert not findings(LINTS, case("vllm serve x -tp 8", model=QWEN_235B, card=H200))
    assert not findings(LINTS, case("vllm serve x -tp 8"))


@pytest.mark.parametrize(
    ("flags", "concurrency", "said"),
    [
        ("-tp 8", 600, ["D8"]),
        ("-tp 8", 256, []),
        ("-dp 8", 100, ["D8"]),
        ("-dp 8", 600, []),
        ("-tp 8", 100, []),
        ("-tp 8", None, []),
    ],
)
def test_the_crossover_is_told_with_the_concurrency_that_was_measured(
    flags: str, concurrency: float | None, said: list[str]
) -> None:
    found = findings(LINTS, case(f"vllm serve x {flags}", model=QWEN_235B, concurrency=concurrency))
    assert rules(found) == said
    assert all(str(int(concurrency or 0)) in one.why for one in found)
