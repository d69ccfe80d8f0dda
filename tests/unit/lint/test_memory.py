"""M4, M5, B1, B2, B3, L1 and O1: the share of the GPU and the size of the batches."""

from dataclasses import replace

import pytest

from flettner.lint.rules import memory, offloading
from flettner.lint.rules import profile as lint_profile
from flettner.rules.precedence import ranked
from flettner.vllm_facts.serve_config import GpuModel, Model
from tests.support.lint_cases import (
    A10,
    DEEPSEEK_R1,
    H100,
    H200,
    LLAMA_8B,
    LLAMA_8B_AWQ,
    MAMBA_9B,
    MIXTRAL,
    QWEN_7B_AWQ,
    RTX_5070,
    T4,
    case,
    findings,
    rules,
)

LINTS = (*memory.LINTS, *offloading.LINTS)


def test_moe_model_reserves_memory_for_its_expert_exchange() -> None:
    asked = case("vllm serve x -dp 8 -ep --gpu-memory-utilization 0.97", model=DEEPSEEK_R1, card=H200)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.severity, found.to) == ("M4", "warning", {"gpu_memory_utilization": 0.85})


@pytest.mark.parametrize("flags", ["", "--gpu-memory-utilization 0.9", "--gpu-memory-utilization 0.95"])
def test_memory_share_of_the_recipes_is_only_a_note(flags: str) -> None:
    (found,) = findings(LINTS, case(f"vllm serve x -dp 8 -ep {flags}", model=DEEPSEEK_R1, card=H200))
    assert (found.rule, found.severity, found.to) == ("M4", "info", {})
    assert "vllm-project/recipes" in found.source


def test_moe_without_an_exchange_between_gpus_keeps_its_memory_share() -> None:
    asked = case("vllm serve x -tp 8 --gpu-memory-utilization 0.95", model=DEEPSEEK_R1, card=H200)
    assert not findings(LINTS, asked)


def test_memory_beside_a_kv_connector_is_only_remarked() -> None:
    flags = "--max-model-len 32768 --gpu-memory-utilization 0.6"
    connector = """--kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'"""

    severities = [
        [one.severity for one in findings(LINTS, case(f"vllm serve x {given}", model=LLAMA_8B, card=H100))]
        for given in (flags, f"{flags} {connector}")
    ]

    assert severities == [["warning"], ["info"]]


def test_embedding_model_whose_weights_exceed_the_share_gets_a_larger_one() -> None:
    flags = "vllm serve x --gpu-memory-utilization 0.3 --runner pooling --max-model-len 8192"
    asked = case(flags, model=LLAMA_8B, card=H100)
    assert not findings(LINTS, asked)
    (found,) = findings(LINTS, replace(asked, card=A10))
    assert (found.rule, found.to) == ("M5", {"gpu_memory_utilization": 0.9})


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        ("", ["M5"]),
        ("--all2all-backend allgather_reducescatter", ["M5"]),
        ("--all2all-backend deepep_low_latency", []),
        ("--all2all-backend nixl_ep --enable-dbo", []),
    ],
)
def test_memory_for_the_exchange_of_experts_stays_free(flags: str, reported: list[str]) -> None:
    command = f"vllm serve x -dp 16 -ep --gpu-memory-utilization 0.75 {flags}"

    found = findings(LINTS, case(command, model=DEEPSEEK_R1, card=H200))

    assert [one.rule for one in found] == reported


def test_two_percent_of_a_large_gpu_suffice_outside_the_accounting() -> None:
    asked = case("vllm serve x --gpu-memory-utilization 0.98", model=LLAMA_8B, card=H200)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.severity) == ("M4", "info")


def test_shared_memory_of_cpu_and_gpu_keeps_its_low_share() -> None:
    card = GpuModel(name="GB10", capability=(12, 1))
    assert not findings(LINTS, case("vllm serve x --gpu-memory-utilization 0.5", card=card))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-Embedding-8B", "jinaai/jina-reranker-m0", "BAAI/bge-m3"])
def test_embedding_model_needs_no_memory_for_a_kv_cache(name: str) -> None:
    assert not findings(LINTS, case(f"vllm serve {name} --gpu-memory-utilization 0.5"))


def test_keeps_the_share_of_single_gpu_moe_dense_models_and_low_shares() -> None:
    assert not findings(LINTS, case("vllm serve x", model=MIXTRAL))
    assert not findings(LINTS, case("vllm serve x -tp 2 --gpu-memory-utilization 0.95", model=LLAMA_8B))
    asked = case("vllm serve x -dp 8 -ep --gpu-memory-utilization 0.85", model=DEEPSEEK_R1)
    assert not findings(LINTS, asked)
    assert not findings(LINTS, case("vllm serve x -dp 8 --gpu-memory-utilization 0.95"))


def test_never_lowers_the_share_below_the_weights() -> None:
    asked = case("vllm serve x --gpu-memory-utilization 0.95", model=MIXTRAL, card=H100)
    assert "M4" not in rules(findings(LINTS, asked))


@pytest.mark.parametrize("model", [None, LLAMA_8B_AWQ])
def test_never_raises_the_share_above_the_sourced_maximum(model: Model | None) -> None:
    flags = "vllm serve x --max-model-len 2048 --gpu-memory-utilization"
    (found,) = findings(LINTS, case(f"{flags} 0.98", model=model, card=T4))
    assert (found.rule, found.severity, found.to) == ("M4", "warning", {"gpu_memory_utilization": 0.92})
    assert not findings(LINTS, case(f"{flags} 0.95", model=model, card=T4))
    assert not findings(LINTS, case("vllm serve x --gpu-memory-utilization 0.99", model=MIXTRAL, gpus=1))[1:]


def test_raises_a_share_that_wastes_gpu_memory() -> None:
    (found,) = findings(LINTS, case("vllm serve x --gpu-memory-utilization 0.6"))
    assert (found.rule, found.to) == ("M5", {"gpu_memory_utilization": 0.9})
    asked = case("vllm serve x --gpu-memory-utilization 0.7", model=LLAMA_8B_AWQ, card=T4)
    (found,) = findings(LINTS, asked)
    assert "tokens now" in found.expects


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--gpu-memory-utilization 0.8",
        "--gpu-memory-utilization 0.5 --kv-cache-memory-bytes 4G",
        "--gpu-memory-utilization 0.3 --runner pooling",
    ],
)
def test_keeps_a_share_that_is_high_enough_or_without_effect(flags: str) -> None:
    assert not findings(LINTS, case(f"vllm serve x {flags}"))


def test_keeps_a_share_that_fits_all_sequences() -> None:
    flags = "--gpu-memory-utilization 0.7 --max-num-seqs 64 --max-model-len 8192"
    assert not findings(LINTS, case(f"vllm serve x {flags}", model=LLAMA_8B, card=H100))


def test_raises_sixteen_sequences_to_128_if_the_cache_fits_them() -> None:
    flags = "--max-num-seqs 16 --max-model-len 2048 --gpu-memory-utilization 0.9"
    (found,) = findings(LINTS, case(f"vllm serve x {flags}", model=LLAMA_8B_AWQ, card=T4))
    assert (found.rule, found.to) == ("B1", {"max_num_seqs": 128})


def test_keeps_sixteen_sequences_if_the_cache_is_small_or_unknown_or_load_is_low() -> None:
    flags = "vllm serve x --max-num-seqs 16"
    assert not findings(LINTS, case(flags, model=LLAMA_8B, card=T4))
    assert not findings(LINTS, case(flags, model=LLAMA_8B))
    assert not findings(LINTS, case(flags, card=H100))
    assert not findings(LINTS, case(flags, model=LLAMA_8B, card=H100, concurrency=8))
    assert "B1" not in rules(findings(LINTS, case(flags, model=MAMBA_9B, card=T4)))


def test_hybrid_on_a_small_gpu_gets_the_small_values() -> None:
    (found,) = findings(LINTS, case("vllm serve x --max-model-len 2048", model=MAMBA_9B, card=T4))
    assert found.rule == "B2"
    assert found.to == {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "gpu_memory_utilization": 0.85,
    }
    flags = "--max-num-seqs 16 --max-num-batched-tokens 512 --gpu-memory-utilization 0.85"
    (found,) = findings(
        LINTS, case(f"vllm serve x {flags} --mamba-ssm-cache-dtype float16", model=MAMBA_9B, card=T4)
    )
    assert found.to == {"mamba_ssm_cache_dtype": "float32"}
    assert not findings(LINTS, case(f"vllm serve x {flags}", model=MAMBA_9B, card=T4))


def test_profile_keeps_the_small_values_of_a_hybrid() -> None:
    flags = "--max-num-seqs 16 --max-num-batched-tokens 512 --gpu-memory-utilization 0.85"
    asked = case(f"vllm serve x {flags}", model=MAMBA_9B, card=T4, profile="batch")
    reported = findings((*LINTS, *lint_profile.LINTS), asked)
    assert [one.rule for one in ranked(reported).kept] == ["B2"]
    assert not reported[0].to


@pytest.mark.parametrize(
    ("profile", "seqs", "tokens"), [("", 128, 2048), ("chat", 128, 2048), ("batch", 256, 4096)]
)
def test_raises_values_that_are_too_small_to_those_of_the_profile(
    profile: str, seqs: int, tokens: int
) -> None:
    flags = "--max-num-seqs 16 --max-num-batched-tokens 512 --max-model-len 8192"
    asked = case(f"vllm serve x {flags}", model=LLAMA_8B, card=H100, profile=profile)
    assert [one.to for one in findings(LINTS, asked)] == [
        {"max_num_seqs": seqs},
        {"max_num_batched_tokens": tokens},
    ]
    few = {**asked.setting, "max_num_batched_tokens": 16}
    assert findings(LINTS, replace(asked, setting=few))[0].to == {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
    }


def test_typical_request_of_a_long_context_model_is_not_long() -> None:
    """457,784 tokens hold 223 requests of 2,048, though only 3 of 131,072."""
    (found,) = findings(LINTS, case("vllm serve x --max-num-seqs 16", model=LLAMA_8B, card=H100))
    assert (found.rule, found.to) == ("B1", {"max_num_seqs": 128})


def test_keeps_offloading_if_the_longest_requests_do_not_fit() -> None:
    flags = "--kv-offloading-size 62 --max-num-seqs 64"
    (found,) = findings(LINTS, case(f"vllm serve x {flags}", model=LLAMA_8B, card=H100))
    assert (found.rule, dict(found.to)) == ("O1", {})


def test_keeps_the_values_of_a_hybrid_on_a_large_gpu() -> None:
    assert not findings(LINTS, case("vllm serve x", model=MAMBA_9B, card=H100))
    assert not findings(LINTS, case("vllm serve x", model=MAMBA_9B))


def test_512_batched_tokens_are_only_for_hybrids() -> None:
    flags = "vllm serve x --max-num-batched-tokens 512"
    (found,) = findings(LINTS, case(flags, model=LLAMA_8B))
    assert (found.rule, found.severity, found.to) == ("B3", "warning", {"max_num_batched_tokens": 2048})
    (found,) = findings(LINTS, case(flags))
    assert found.severity == "info"
    assert not findings(LINTS, case(flags, model=MAMBA_9B))
    assert not findings(LINTS, case("vllm serve x --max-num-batched-tokens 2048", model=LLAMA_8B))


def test_removes_offloading_if_the_gpu_fits_all_and_else_reports_it() -> None:
    flags = "--kv-offloading-size 62 --kv-offloading-backend native"
    few = f"vllm serve x {flags} --max-num-seqs 4 --max-model-len 4096"
    found = findings(LINTS, case(few, model=QWEN_7B_AWQ, card=RTX_5070))[-1]
    assert (found.rule, found.severity) == ("O1", "warning")
    assert found.to == {"kv_offloading_size": None}
    many = f"vllm serve x {flags} --max-num-seqs 64 --max-model-len 16384"
    (found,) = findings(LINTS, case(many, model=QWEN_7B_AWQ, card=RTX_5070))
    assert (found.severity, dict(found.to)) == ("info", {})
    assert "not promised" in found.expects


def test_shortens_a_context_that_does_not_fit_one_request() -> None:
    (found,) = findings(LINTS, case("vllm serve x", model=LLAMA_8B, card=A10))
    assert (found.rule, found.severity, found.klass) == ("L1", "error", "gated")
    to = found.to["max_model_len"]
    assert isinstance(to, int)
    assert 2048 <= to < 131072
    assert not findings(LINTS, case(f"vllm serve x --max-model-len {to}", model=LLAMA_8B, card=A10))


def test_keeps_a_context_that_fits_or_is_unknown_or_unset() -> None:
    assert not findings(LINTS, case("vllm serve x", model=LLAMA_8B, card=H100))
    assert not findings(LINTS, case("vllm serve x", model=LLAMA_8B))
    assert not findings(LINTS, case("vllm serve x --max-model-len auto", model=LLAMA_8B, card=A10))


def test_never_proposes_a_context_beyond_the_models_limit() -> None:
    (found,) = findings(LINTS, case("vllm serve x --max-model-len 1000000", model=LLAMA_8B, card=H100))
    assert (found.rule, found.to) == ("L1", {"max_model_len": 131072})
