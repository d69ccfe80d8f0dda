"""Findings that outrank each other by rank or by a conflict over one knob."""

import pytest

from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints
from flettner.rules.precedence import ranked
from flettner.vllm_facts.serve_config import ServeConfig
from tests.support.lint_cases import (
    DEEPSEEK_R1,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_8B_AWQ,
    LLAMA_70B,
    MAMBA_9B,
    MAVERICK,
    QWEN_2B,
    T4,
    case,
    dense,
    findings,
)
from tests.support.proposals import rules

NO_BLOCKS = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
)
WARM_UP = "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
FEW = WARM_UP.replace("256", "16")
QWEN_32B = dense("Qwen/Qwen2.5-32B-Instruct", 32.8, layers=64, hidden_size=5120, heads=40)
SHORT = "vllm serve x --max-model-len 2048"


@pytest.mark.parametrize(
    ("config", "first", "outranked"),
    [
        (case("vllm serve x -tp 8", model=DEEPSEEK_R1, card=H200, concurrency=600), "D7", "D8"),
        (case(f"{SHORT} -tp 2", model=LLAMA_8B, card=L40S, concurrency=600), "D1", "D8"),
        (
            case(f"{SHORT} -tp 8", model=QWEN_32B, log=("not supported on more than two PCIe-only GPUs",)),
            "D5",
            "D2",
        ),
        (case(SHORT, model=MAMBA_9B, card=T4, profile="chat"), "B2", "W1"),
        (case("vllm serve x -tp 8", model=MAVERICK, card=H200, profile="wide-ep"), "D6", "W1"),
        (case(f"{SHORT} --max-num-seqs 16", model=LLAMA_8B_AWQ, card=T4, log=(FEW,)), "F5", "B1"),
        (case(f"{SHORT} --enforce-eager", model=LLAMA_8B_AWQ, card=T4, log=(NO_BLOCKS,)), "F4", "G1"),
        (case(f"{SHORT} --gpu-memory-utilization 0.7", log=(WARM_UP,)), "F5", "M5"),
        (case(f"{SHORT} --max-num-batched-tokens 512", model=LLAMA_8B, log=(NO_BLOCKS,)), "F4", "B3"),
        (case(f"{SHORT} -O1", log=(WARM_UP,)), "F5", "G3"),
        (
            case(f"{SHORT} --max-num-seqs 64 --max-cudagraph-capture-size 8", log=(NO_BLOCKS,)),
            "F4",
            "G2",
        ),
        (case(f"{SHORT} --max-num-seqs 512", profile="chat", card=H100, log=(WARM_UP,)), "F5", "W1"),
    ],
)
def test_more_severe_finding_outranks_the_other(config: ServeConfig, first: str, outranked: str) -> None:
    reported = findings(all_lints(), config)
    assert {first, outranked} <= {*rules(reported)}
    order = ranked(reported)
    assert first in rules(order.winners)
    assert outranked in [lost.what.rule for lost in order.outranked]
    assert outranked not in rules(order.winners)


@pytest.mark.parametrize(
    "config",
    [
        case("vllm serve x -tp 4 --enforce-eager", model=QWEN_2B, card=L40S, gpus=4),
        case("vllm serve x -tp 8 --gpu-memory-utilization 0.95", model=DEEPSEEK_R1, card=H200, gpus=8),
        case("vllm serve x -tp 3 --enforce-eager --dtype bfloat16", model=LLAMA_70B, card=T4, gpus=8),
        case(
            f"{SHORT} --dtype bfloat16 --attention-backend FLASH_ATTN --enforce-eager",
            model=LLAMA_8B_AWQ,
            card=T4,
        ),
    ],
)
def test_winning_findings_never_propose_two_values_of_one_knob(config: ServeConfig) -> None:
    wanted: dict[str, object] = {}
    for finding in ranked(findings(all_lints(), config)).winners:
        for knob, value in finding.to.items():
            assert wanted.setdefault(knob, value) == value, (finding.rule, knob)


def test_a_build_without_the_kernels_for_the_card_is_the_first_warning() -> None:
    flags = f"{SHORT} --enforce-eager --gpu-memory-utilization 0.97"
    config = case(flags, model=LLAMA_8B_AWQ, card=T4, version="0.12.0")

    fixes = find_fixes(config, all_lints())

    assert rules(fixes.findings)[0] == "E1"
    assert {"G1", "M4"} <= {*rules(fixes.findings)}
