"""What vLLM refused according to the log, where flags and facts do not tell."""

import pytest

from flettner.lint.rules import all_lints
from flettner.lint.rules.start_errors import LINTS
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import LLAMA_8B, T4, case, findings

RANK = "ValueError: LoRA rank 64 is greater than max_lora_rank 16."
HEADS = "Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8)."
BLOCK = (
    "ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization "
    "block_n = 128."
)
DOWN = BLOCK.replace("output_size of gate's and up's", "input_size of down's").replace("block_n", "block_k")
CAPABILITY = (
    "ValueError: The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 80. "
    "Current capability: 75."
)


@pytest.mark.parametrize(
    ("flags", "line", "rule", "why", "to"),
    [
        ("--enable-lora", RANK, "V1", "rank 64", {"max_lora_rank": 64}),
        ("--enable-lora", RANK.replace("64", "48"), "V1", "rank 48", {"max_lora_rank": 64}),
        ("--enable-lora", RANK.replace("64", "999"), "V1", "rank 999", {}),
        ("-tp 8", HEADS, "D3", "28 attention heads", {"tensor_parallel_size": 4}),
        ("-tp 8", BLOCK, "V1", "192", {"enable_expert_parallel": True}),
        ("-tp 8", DOWN, "V1", "192", {"enable_expert_parallel": True}),
        ("", CAPABILITY, "H2", "need compute capability 8.0, the GPU has 7.5", {}),
    ],
)
def test_a_refusal_in_the_log_is_reported_once_with_its_fix(
    flags: str, line: str, rule: str, why: str, to: dict[str, Value]
) -> None:
    (found,) = findings(all_lints(), case(f"vllm serve m {flags}", log=("INFO x", line)))

    assert (found.rule, found.severity, found.to) == (rule, "error", to)
    assert why in found.why


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--enable-lora --max-lora-rank 64", RANK),
        ("-tp 4", HEADS),
        ("-tp 8 --enable-expert-parallel", BLOCK),
    ],
)
def test_a_log_of_another_start_is_ignored(flags: str, line: str) -> None:
    assert not findings(LINTS, case(f"vllm serve m {flags}", log=(line,)))


def test_what_the_facts_already_show_is_not_reported_twice() -> None:
    heads = HEADS.replace("28", "32").replace("(8)", "(3)")
    assert not findings(LINTS, case("vllm serve m -tp 3", log=(heads,), model=LLAMA_8B))
    quantized = case("vllm serve m --quantization mxfp4", log=(CAPABILITY,), card=T4)
    assert not findings(LINTS, quantized)
