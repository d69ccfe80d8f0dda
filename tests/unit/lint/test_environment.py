"""U1, U2, U3 and R1: environment variables and exposed interfaces."""

from dataclasses import replace

import pytest

from flettner.lint.rules.environment import LINTS
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.lint_cases import DEEPSEEK_R1, GB200, H100, H200, LLAMA_8B, MAVERICK, case, findings, rules

R1 = "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --enable-expert-parallel"
DEEP_GEMM = "VLLM_MOE_USE_DEEP_GEMM=1"


def test_remarks_on_deep_gemm_for_few_requests_on_an_h200() -> None:
    asked = case(R1, env=DEEP_GEMM, version="0.19.0", card=H200, model=DEEPSEEK_R1, concurrency=8)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.klass) == ("U1", "note")
    assert "8 requests at once" in found.why
    assert "against it: " in found.source


def test_keeps_deep_gemm_where_small_batches_leave_it_on_other_gpus_and_under_load() -> None:
    for version in ("0.32.0", "0.33.1", ""):
        assert not findings(LINTS, case(R1, env=DEEP_GEMM, version=version, card=H200, model=DEEPSEEK_R1))
    assert not findings(LINTS, case(R1, env=DEEP_GEMM, version="0.19.0", card=H100, model=DEEPSEEK_R1))
    assert not findings(LINTS, case(R1, env=DEEP_GEMM, version="0.19.0", model=DEEPSEEK_R1))
    assert not findings(LINTS, case(R1, version="0.19.0", card=H200, model=DEEPSEEK_R1))
    assert not findings(LINTS, case(R1, env=DEEP_GEMM, version="0.19.0", card=H200, model=LLAMA_8B))
    loaded = case(R1, env=DEEP_GEMM, version="0.19.0", card=H200, model=DEEPSEEK_R1, concurrency=256)
    assert not findings(LINTS, loaded)


def test_gb200_without_cumem_cannot_use_nvlink() -> None:
    (found,) = findings(LINTS, case(R1, env="NCCL_CUMEM_ENABLE=0", card=GB200))
    assert (found.rule, found.severity, found.env) == ("U2", "warning", {"NCCL_CUMEM_ENABLE": None})


def test_notes_manual_nccl_tuning_and_warns_of_a_slowdown() -> None:
    (found,) = findings(LINTS, case(R1, env="NCCL_ALGO=Ring NCCL_DEBUG=INFO", card=H100))
    assert (found.rule, found.severity, found.env) == ("U2", "info", {"NCCL_ALGO": None})
    (found,) = findings(LINTS, case(R1, env="NCCL_P2P_DISABLE=1", card=H100))
    assert found.severity == "warning"


def test_keeps_required_and_harmless_nccl_variables() -> None:
    env = "NCCL_IB_HCA=mlx5 NCCL_IB_GID_INDEX=3 NCCL_NET_GDR_LEVEL=5 NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=WARN"
    assert not findings(LINTS, case(R1, env=env, card=H100))
    assert not findings(LINTS, case(R1, env="NCCL_P2P_DISABLE=0 NCCL_CUMEM_ENABLE=1", card=GB200))
    assert not findings(LINTS, case("vllm serve x", env="NCCL_ALGO=Ring", card=H100))


def test_reports_the_llama_4_compile_cache_defect_and_an_outdated_workaround() -> None:
    asked = case("vllm serve meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", version="0.11.0")
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.env) == ("U3", {"VLLM_DISABLE_COMPILE_CACHE": "1"})
    (found,) = findings(LINTS, case("vllm serve x", model=MAVERICK))
    assert (found.klass, found.env) == ("note", {})
    assert "no longer applies" in found.why
    assert not findings(LINTS, case("vllm serve x", model=MAVERICK, env="VLLM_DISABLE_COMPILE_CACHE=1"))
    assert not findings(LINTS, case("vllm serve x", model=LLAMA_8B))


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        ("--trust-remote-code", ["R1"]),
        ("--host 0.0.0.0", ["R1"]),
        ("--host 0.0.0.0 --trust-remote-code", ["R1", "R1"]),
        ("--host 0.0.0.0 --api-key secret", []),
        ("--host 127.0.0.1", []),
        ("--host ::1", []),
        ("--host gateway.internal", []),
        ("", []),
    ],
)
def test_notes_insecure_options(flags: str, reported: list[str]) -> None:
    assert rules(findings(LINTS, case(f"vllm serve Qwen/Qwen3-8B {flags}"))) == reported


def test_api_key_in_the_environment_counts() -> None:
    asked = case("vllm serve Qwen/Qwen3-8B --host 0.0.0.0", env="VLLM_API_KEY=x")
    assert not findings(LINTS, asked)


def test_gpus_of_a_container_need_more_shared_memory_than_docker_gives() -> None:
    asked = replace(case("vllm serve x -tp 2"), little_shared_memory="compose")
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.severity, "shm_size" in found.expects) == ("U2", "warning", True)
    assert not findings(LINTS, replace(case("vllm serve x"), little_shared_memory="compose"))


@pytest.mark.parametrize(
    ("options", "little"),
    [
        ("--gpus all", True),
        ("--gpus all --ipc=host", False),
        ("--gpus all --ipc host", False),
        ("--shm-size 16g", False),
        ("-v /dev/shm:/dev/shm", False),
    ],
)
def test_docker_gives_64_mb_of_shared_memory_by_default(options: str, little: bool) -> None:
    words = f"docker run {options} vllm/vllm-openai:v0.20.0 --model org/model -tp 2".split()
    assert parse_command(words).little_shared_memory == ("docker run" if little else None)
    assert not parse_command(["vllm", "serve", "org/model"]).little_shared_memory


def test_aiter_is_named_on_amd_gpus_without_it() -> None:
    mi300x = find_gpu("MI300X")
    (found,) = findings(LINTS, case("vllm serve m", card=mi300x))
    assert (found.rule, found.klass) == ("U1", "note")
    assert not findings(LINTS, case("vllm serve m", env="VLLM_ROCM_USE_AITER=0", card=mi300x))
    assert not findings(LINTS, case("vllm serve m", card=H100))


def test_peer_access_may_be_off_between_pcie_gpus() -> None:
    asked = "vllm serve m -tp 2"
    assert not findings(LINTS, case(asked, env="NCCL_P2P_DISABLE=1", card=find_gpu("RTX 4090")))
    assert findings(LINTS, case(asked, env="NCCL_SHM_DISABLE=1", card=find_gpu("RTX 4090")))
