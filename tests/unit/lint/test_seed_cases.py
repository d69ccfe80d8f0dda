"""The command lines of the five source documents of the rules, linted with all known facts.

Each case lists the expected rules in order, errors first; sane commands have no finding above info.
"""

import shlex
from dataclasses import replace

import pytest

from flettner.lint.fixes import Fixes, find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.flag_parser import edit_flags, parse_setting
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, layout
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.lint_cases import case

T4_AWQ = "vllm serve ArtusDev/nvidia_Llama-3.1-Nemotron-Nano-8B-v1-AWQ --max-model-len 2048"
T4_MAMBA = "vllm serve RedHatAI/NVIDIA-Nemotron-Nano-9B-v2-quantized.w4a16 --max-model-len 2048"
CONFIGURATION_A = (
    f"{T4_AWQ} --quantization compressed-tensors --dtype half --max-num-batched-tokens 2048 "
    "--max-num-seqs 128 --enable-chunked-prefill --enable-prefix-caching --gpu-memory-utilization 0.9"
)
CONFIGURATION_B = (
    f"{T4_MAMBA} --quantization compressed-tensors --dtype half --max-num-batched-tokens 512 "
    "--max-num-seqs 16 --enable-chunked-prefill --gpu-memory-utilization 0.85"
)
PCIE_ONLY = "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."
EAGER = "INFO [vllm.py:1] Cudagraph is disabled under eager mode"
WARM_UP = "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
DEFAULT_MOE = (
    "Using default MoE config. Performance might be sub-optimal! Config file not found at "
    "/x/configs/E=128,N=768,device_name=NVIDIA_B200.json"
)
OFFLOADING = (
    "vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --async-scheduling --kv-offloading-backend native "
    "--kv-offloading-size 62 --kv-cache-dtype fp8 --quantization awq"
)
WORKING = (
    f"{OFFLOADING} --max-model-len 16384 --gpu-memory-utilization 0.85 --max-num-seqs 64 "
    "--disable-hybrid-kv-cache-manager"
)


def known(
    command: str,
    *,
    card: str = "",
    gpus: int = 1,
    env: str = "",
    version: str = "0.32.0",
    profile: str = "",
    log: tuple[str, ...] = (),
    concurrency: float | None = None,
) -> ServeConfig:
    """Build the case like the command line tool, with GPU and model looked up by name."""
    model = find_model(shlex.split(command)[2])
    assert model is not None, command
    asked = case(command, env=env, version=version, model=model, gpus=gpus)
    found = find_gpu(card) if card else None
    assert found is not None or not card
    return replace(asked, card=found, profile=profile, log=log, concurrency=concurrency)


def advised(asked: ServeConfig) -> Fixes:
    return find_fixes(asked, all_lints())


def rules_of(fixes: Fixes, *, above_info: bool = True) -> list[str]:
    return [one.rule for one in fixes.findings if one.severity != "info" or not above_info]


@pytest.mark.parametrize(
    ("command", "version", "env", "rules"),
    [
        # the two final configurations of the report
        (CONFIGURATION_A, "0.14.1", "", []),
        (CONFIGURATION_B, "0.14.1", "", []),
        # its table of attempts
        (T4_AWQ, "0.12.0", "NIM_MODEL_PROFILE=x VLLM_ATTENTION_BACKEND=XFORMERS", ["H1", "E1"]),
        (T4_AWQ, "0.12.0", "NIM_MODEL_PROFILE=x VLLM_ATTENTION_BACKEND=TORCH_SDPA", ["H1", "E1"]),
        (T4_AWQ, "0.12.0", "NIM_MODEL_PROFILE=x VLLM_ATTENTION_BACKEND=FLASH_ATTN", ["H1", "E1"]),
        (T4_AWQ, "0.12.0", "NIM_MODEL_PROFILE=x", ["E1"]),
        (T4_AWQ, "0.14.1", "", []),
        # its bad parameters
        (f"{T4_AWQ} --enforce-eager", "0.14.1", "", ["G1"]),
        (f"{T4_AWQ} --dtype bfloat16", "0.14.1", "", ["H2"]),
        (f"{T4_AWQ} --max-num-seqs 16", "0.14.1", "", ["B1"]),
        (f"{T4_AWQ} --max-num-batched-tokens 512", "0.14.1", "", ["B3"]),
        (f"{T4_AWQ} --gpu-memory-utilization 0.7", "0.14.1", "", ["M5"]),
        (T4_MAMBA, "0.14.1", "", ["B2"]),
        (f"{T4_AWQ} --attention-backend FLASH_ATTN", "0.32.0", "", ["H1"]),
    ],
)
def test_findings_for_the_t4_matrix(command: str, version: str, env: str, rules: list[str]) -> None:
    fixes = advised(known(command, card="Tesla T4", version=version, env=env))
    assert rules_of(fixes) == rules


def test_fixes_all_t4_faults_at_once() -> None:
    flags = "--dtype bfloat16 --enforce-eager --max-num-batched-tokens 512 --max-num-seqs 16"
    command = f"{T4_AWQ} {flags} --gpu-memory-utilization 0.7"
    fixes = advised(known(command, card="T4", version="0.14.1", env="VLLM_ATTENTION_BACKEND=FLASH_ATTN"))
    assert sorted(rules_of(fixes)) == ["B1", "B3", "G1", "H1", "H2", "M5"]
    assert fixes.to == {
        "dtype": "half",
        "enforce_eager": False,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.9,
    }
    assert fixes.env == {"VLLM_ATTENTION_BACKEND": None}


PCIE_2B = (
    "vllm serve Qwen/Qwen3-VL-2B-Instruct --tensor-parallel-size 4 --data-parallel-size 1 --enforce-eager "
    "--gpu-memory-utilization 0.9 --max-num-batched-tokens 2048"
)


def test_findings_for_the_2b_model_on_four_pcie_gpus() -> None:
    fixes = advised(known(PCIE_2B, card="L40S", gpus=4))
    assert rules_of(fixes) == ["D1", "D5", "G1"]
    assert fixes.to == {"tensor_parallel_size": 1, "data_parallel_size": 4, "enforce_eager": False}


def test_findings_for_the_2b_model_with_a_context_too_long_for_one_gpu() -> None:
    fixes = advised(known(PCIE_2B, card="RTX A5000", gpus=4))
    assert rules_of(fixes) == ["D1", "D5", "G1"]
    length = fixes.to["max_model_len"]
    assert isinstance(length, int)
    assert 32768 <= length < 262144


def test_findings_for_the_2b_model_from_its_log_alone() -> None:
    fixes = advised(known(PCIE_2B, gpus=4, version="0.11.0", log=(EAGER, PCIE_ONLY)))
    assert rules_of(fixes)[:3] == ["G1", "D1", "D5"]
    assert fixes.to == {"enforce_eager": False}  # whether one GPU holds the model is unknown
    assert "tensor_parallel_size 1" in fixes.findings[1].expects


def test_final_2b_command_of_the_guide_has_no_findings_above_info() -> None:
    flags = "--data-parallel-size 4 --max-num-seqs 512 --max-num-batched-tokens 8192"
    command = f"vllm serve Qwen/Qwen3-VL-2B-Instruct {flags} --gpu-memory-utilization 0.95"
    assert rules_of(advised(known(command, card="A100 80GB", gpus=4))) == []


def test_findings_for_the_rtx_5070_and_its_log() -> None:
    """As first tried with 0.14.0: multi-step scheduling, offloading, and the OOM of the warm-up."""
    command = f"{OFFLOADING} --num-scheduler-steps 8"
    fixes = advised(known(command, card="RTX 5070", version="0.14.0", log=(WARM_UP,)))
    assert sorted(rules_of(fixes)) == ["E2", "F5", "V1", "V2"]
    assert "O1" in rules_of(fixes, above_info=False)
    assert fixes.to["num_scheduler_steps"] is None
    assert fixes.to["disable_hybrid_kv_cache_manager"] is True
    assert fixes.to["quantization"] is None
    assert fixes.to["max_num_seqs"] == 64


def test_findings_for_the_working_rtx_5070_command_then_and_now() -> None:
    env = "VLLM_USE_V1=1 VLLM_ATTENTION_BACKEND=FLASHINFER"
    fixes = advised(known(WORKING, card="RTX 5070", version="0.14.0", env=env))
    assert rules_of(fixes) == ["E2"]
    today = advised(known(WORKING, card="RTX 5070", env=env))
    assert "V1" in rules_of(today, above_info=False)
    assert today.env == {"VLLM_USE_V1": None, "VLLM_ATTENTION_BACKEND": None}
    assert today.to == {"disable_hybrid_kv_cache_manager": None}


DEEPSEEK = "vllm serve deepseek-ai/DeepSeek-R1"
MAVERICK = "vllm serve meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8 -tp 8"


@pytest.mark.parametrize(
    ("asked", "rules"),
    [
        (
            known(f"{DEEPSEEK} -dp 8 -ep --gpu-memory-utilization 0.97", card="H200", gpus=8),
            ["M4"],
        ),
        (known("vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 7", card="H100", gpus=8), ["D3"]),
        (known("vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8", card="B200", gpus=8, concurrency=256), ["D7"]),
        (known(f"{MAVERICK} --enable-expert-parallel", card="H200", gpus=8), ["D6"]),
        (known(f"{DEEPSEEK} -tp 8", card="H200", gpus=8, concurrency=256), ["D7"]),
        (known("vllm serve Qwen/Qwen3-30B-A3B --no-async-scheduling", card="H100"), ["A1"]),
        (
            known(
                f"{DEEPSEEK} -dp 8 -ep --gpu-memory-utilization 0.85",
                card="GB200",
                gpus=8,
                env="NCCL_CUMEM_ENABLE=0",
            ),
            ["U2"],
        ),
    ],
    ids=["2", "3", "4", "5", "6", "7", "10"],
)
def test_findings_for_common_moe_mistakes(asked: ServeConfig, rules: list[str]) -> None:
    assert rules_of(advised(asked)) == rules


def test_reports_moe_mistake_9_in_versions_where_it_applies() -> None:
    fixes = advised(known(MAVERICK, card="H200", gpus=8, version="0.11.0"))
    assert "U3" in rules_of(fixes, above_info=False)
    assert fixes.env == {"VLLM_DISABLE_COMPILE_CACHE": "1"}


def test_keeps_the_wide_expert_parallel_recipe() -> None:
    command = f"{DEEPSEEK} -dp 8 -ep --enable-eplb --gpu-memory-utilization 0.85 --max-num-seqs 256"
    asked = known(f"{command} --max-num-batched-tokens 8192", card="H200", gpus=8, profile="wide-ep")
    assert rules_of(advised(asked), above_info=False) == []


LLAMA_7B, LLAMA_13B = (
    "vllm serve meta-llama/Llama-2-7b-hf --max-model-len 2048",
    "vllm serve meta-llama/Llama-2-13b-hf",
)


@pytest.mark.parametrize(
    ("profile", "command", "card", "gpus", "rules"),
    [
        (
            "chat",
            f"{LLAMA_7B} --max-num-seqs 64 --max-num-batched-tokens 4096 --gpu-memory-utilization 0.85",
            "A100 40GB",
            1,
            [],
        ),
        (
            "batch",
            f"{LLAMA_13B} --max-num-seqs 512 --max-num-batched-tokens 32768 --quantization fp8",
            "H100",
            1,
            [],
        ),
        (
            "rag",
            f"{LLAMA_7B} --enable-prefix-caching --gpu-memory-utilization 0.85 --max-num-seqs 256",
            "A100 80GB",
            1,
            [],
        ),
        (
            "api",
            f"{LLAMA_13B} --max-num-seqs 256 --max-num-batched-tokens 12288 --swap-space 8",
            "A100 80GB",
            1,
            ["V1"],
        ),
        (
            "",
            "vllm serve meta-llama/Llama-2-70b-hf -tp 4 --gpu-memory-utilization 0.9 --max-num-seqs 256",
            "A100 SXM 80GB",
            4,
            [],
        ),
        (
            "chat",
            f"{LLAMA_7B} --max-num-seqs 512 --max-num-batched-tokens 16384",
            "A100 40GB",
            1,
            ["W1", "W1"],
        ),
        ("batch", f"{LLAMA_7B} --max-num-batched-tokens 1024", "A100 80GB", 1, ["W1"]),
        (
            "rag",
            f"{LLAMA_7B} --max-num-batched-tokens 2048 --no-enable-prefix-caching",
            "H100",
            1,
            ["X1", "W1"],
        ),
    ],
)
def test_findings_for_the_templates_by_profile(
    profile: str, command: str, card: str, gpus: int, rules: list[str]
) -> None:
    assert rules_of(advised(known(command, card=card, gpus=gpus, profile=profile))) == rules


GOOD = (
    ("vllm serve Qwen/Qwen3-0.6B", "T4", 1),
    ("vllm serve Qwen/Qwen3-8B --max-model-len 16384", "L4", 1),
    ("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32768", "A100 40GB", 1),
    ("vllm serve meta-llama/Llama-3.1-8B-Instruct", "H100", 1),
    ("vllm serve meta-llama/Llama-3.1-8B-Instruct -dp 4", "H100", 4),
    ("vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-num-seqs 256", "H100", 2),
    ("vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --max-model-len 32768", "H100", 4),
    ("vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 8", "A100 SXM 80GB", 8),
    (
        "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 2 --quantization fp8 --max-model-len 16384",
        "H100",
        2,
    ),
    ("vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --max-model-len 8192", "RTX 4090", 1),
    ("vllm serve Qwen/Qwen2.5-14B-Instruct --max-model-len 8192 --host 0.0.0.0", "RTX A6000", 1),
    ("vllm serve Qwen/Qwen2.5-32B-Instruct -tp 2 --kv-cache-dtype fp8", "H100", 2),
    ("vllm serve Qwen/Qwen3-30B-A3B --gpu-memory-utilization 0.85", "H100", 1),
    ("vllm serve Qwen/Qwen3-235B-A22B -tp 8 -ep --gpu-memory-utilization 0.85", "H200", 8),
    ("vllm serve deepseek-ai/DeepSeek-V3 -dp 8 -ep --gpu-memory-utilization 0.85", "H200", 8),
    ("vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 -tp 2", "A100 SXM 80GB", 2),
    ("vllm serve openai/gpt-oss-20b", "H100", 1),
    ("vllm serve Qwen/Qwen3-VL-2B-Instruct -dp 4 --max-model-len 32768", "L40S", 4),
    ("vllm serve meta-llama/Llama-3.3-70B-Instruct -pp 4 --max-model-len 8192", "L40S", 4),
    ("vllm serve Qwen/Qwen3-8B --max-num-seqs 128 --max-num-batched-tokens 4096 --api-key x", "H100", 1),
    ("vllm serve Qwen/Qwen3-8B --performance-mode throughput --stream-interval 4", "H100", 1),
    ("vllm serve Qwen/Qwen3-8B --max-num-active-seqs 64 --watermark 0.02", "H100", 1),
)


@pytest.mark.parametrize(("command", "card", "gpus"), GOOD)
def test_sane_command_has_no_finding_above_info(command: str, card: str, gpus: int) -> None:
    assert rules_of(advised(known(command, card=card, gpus=gpus))) == []


@pytest.mark.parametrize("command", [command for command, _, _ in GOOD])
def test_sane_command_stays_sane_without_facts(command: str) -> None:
    bare = case(command, version="")
    assert rules_of(advised(bare)) == []


@pytest.mark.parametrize(
    ("command", "card", "gpus"),
    [(PCIE_2B, "L40S", 4), (OFFLOADING, "RTX 5070", 1), (f"{DEEPSEEK} -tp 8", "H200", 8), *GOOD],
)
def test_improved_command_has_no_finding_with_a_change(command: str, card: str, gpus: int) -> None:
    asked = known(command, card=card, gpus=gpus)
    fixes = advised(asked)
    argv = edit_flags(shlex.split(command), fixes.to)
    again = advised(replace(asked, setting=parse_setting(argv)))
    assert rules_of(again) == []


LLAMA_3 = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70 = "vllm serve meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        ("H1", known(f"{T4_AWQ} --attention-backend FLASH_ATTN", card="T4")),
        ("H2", known(f"{T4_AWQ} --dtype bfloat16", card="T4")),
        ("H3", known(f"{LLAMA_3} --attention-backend FLASHINFER", card="H100")),
        ("E1", known(T4_AWQ, card="T4", version="0.12.0", env="NIM_MODEL_PROFILE=x")),
        ("E2", known(f"{T4_AWQ} --quantization awq", card="T4", version="0.14.1")),
        ("D1", known("vllm serve Qwen/Qwen2.5-7B-Instruct -tp 4", card="L4", gpus=4)),
        ("D2", known(f"{LLAMA_70} --max-model-len 8192", card="H100", gpus=8)),
        ("D3", known(f"{LLAMA_3} -tp 6", card="H100", gpus=8)),
        ("D4", known(f"{LLAMA_70} -tp 2 -pp 2 --max-model-len 8192", card="H100", gpus=4)),
        ("D5", known(f"{LLAMA_70} -tp 4 --max-model-len 8192", card="L40S", gpus=4)),
        ("D6", known(f"{MAVERICK} -ep", card="H200", gpus=8)),
        ("D7", known(f"{DEEPSEEK} -tp 8", card="H200", gpus=8)),
        ("D7", known("vllm serve moonshotai/Kimi-K2-Instruct -tp 8", card="H200", gpus=8)),
        ("D8", known(f"{DEEPSEEK} -tp 8", card="H200", gpus=8, concurrency=64)),
        ("M4", known(f"{DEEPSEEK} -dp 8 -ep --gpu-memory-utilization 0.97", card="H200", gpus=8)),
        ("M5", known(f"{LLAMA_3} --gpu-memory-utilization 0.6", card="A100 80GB")),
        ("B1", known(f"{LLAMA_3} --max-num-seqs 16", card="H100")),
        ("B2", known(T4_MAMBA, card="T4")),
        ("B3", known(f"{LLAMA_3} --max-num-batched-tokens 512", card="H100")),
        ("W1", known(f"{LLAMA_3} --max-num-seqs 1024", card="H100", profile="chat")),
        ("V1", known(f"{LLAMA_3} --swap-space 16")),
        ("V2", known(OFFLOADING, card="RTX 5070", version="0.14.0")),
        ("U1", known(f"{DEEPSEEK} -dp 8 -ep", card="H200", version="0.18.0", env="VLLM_MOE_USE_DEEP_GEMM=1")),
        ("U2", known(f"{DEEPSEEK} -dp 8 -ep", card="GB200", gpus=8, env="NCCL_CUMEM_ENABLE=0")),
        ("U3", known(MAVERICK, card="H200", gpus=8, version="0.11.0")),
        ("R1", known(f"{LLAMA_3} --trust-remote-code")),
        ("F1", known("vllm serve Qwen/Qwen3-30B-A3B", card="B200", log=(DEFAULT_MOE,))),
        ("F5", known(OFFLOADING, card="RTX 5070", version="0.14.0", log=(WARM_UP,))),
    ],
)
def test_each_flag_and_hardware_rule_fires(rule: str, asked: ServeConfig) -> None:
    assert rule in rules_of(advised(asked), above_info=False)


@pytest.mark.parametrize(
    ("command", "card", "gpus", "tp", "dp"),
    [  # the size ladder of the parallelism guide, where the card's arithmetic agrees with it
        (PCIE_2B, "L40S", 4, 1, 4),
        ("vllm serve Qwen/Qwen3-14B -tp 4", "A100 SXM 40GB", 4, 2, 2),
        ("vllm serve meta-llama/Llama-2-70b-hf", "A100 SXM 40GB", 4, 4, 1),
        ("vllm serve meta-llama/Llama-3.1-405B-Instruct --quantization fp8", "H100", 8, 8, 1),
    ],
)
def test_findings_for_the_size_ladder(command: str, card: str, gpus: int, tp: int, dp: int) -> None:
    asked = known(command, card=card, gpus=gpus)
    assert layout(advised(asked).after(asked)) == Layout(tp=tp, dp=dp)
