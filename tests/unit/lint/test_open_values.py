"""A value that is filled in later is no default."""

import pytest

from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import GpuModel
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.lint_cases import H100, case

GB10 = find_gpu("GB10")


@pytest.mark.parametrize(
    ("model", "flag", "card", "rule"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "--tensor-parallel-size $TP", H100, "D2"),
        ("meta-llama/Llama-3.1-70B-Instruct", "--tensor-parallel-size=<GPUS>", H100, "D2"),
        ("Qwen/Qwen3-30B-A3B", "--gpu-memory-utilization {share}", GB10, "M4"),
    ],
)
def test_nothing_is_said_of_the_default_of_a_flag_to_fill_in(
    model: str, flag: str, card: GpuModel, rule: str
) -> None:
    def rules(flags: str) -> set[str]:
        config = case(
            f"vllm serve {model} '{flags}'".replace("''", ""), model=find_model(model), card=card, gpus=8
        )
        return {finding.rule for finding in find_fixes(config, all_lints()).findings}

    assert rule not in rules(flag.replace(" ", "' '"))
    assert rule in rules("")


def test_one_gpu_leaves_one_layout() -> None:
    model = find_model("meta-llama/Llama-3.1-70B-Instruct")
    config = case("vllm serve m --tensor-parallel-size $TP", model=model, card=H100, gpus=1)

    assert "D2" in {finding.rule for finding in find_fixes(config, all_lints()).findings}


@pytest.mark.parametrize("in_process", [True, False])
def test_an_engine_inside_a_program_gets_no_copies(in_process: bool) -> None:
    model = find_model("Qwen/Qwen3-8B")
    config = case("vllm serve Qwen/Qwen3-8B -tp 2", model=model, card=H100, gpus=2, in_process=in_process)
    fixes = find_fixes(config, all_lints())

    assert ("data_parallel_size" in fixes.to) != in_process
