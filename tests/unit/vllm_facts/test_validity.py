"""Flags that vLLM refuses in combination with each other or with the model."""

import pytest

from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.validity.engine import NOT_ABOVE, REFUSED, find_problems
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import DEEPSEEK_R1, H100, LLAMA_8B, MIXTRAL, case


@pytest.mark.parametrize(
    ("flags", "why", "to"),
    [
        (
            "--max-num-batched-tokens 64 --max-num-seqs 128",
            "64 is below max_num_seqs 128",
            {"max_num_batched_tokens": 128},
        ),
        ("--max-num-seqs 8 --max-num-active-seqs 16", "16 is above", {"max_num_active_seqs": 8}),
        (
            "--max-model-len 4K --long-prefill-token-threshold 8192",
            "8192 is above max_model_len 4096",
            {"long_prefill_token_threshold": 4096},
        ),
        (
            "--no-enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096",
            "without chunked prefill",
            {"enable_chunked_prefill": None},
        ),
        ("--max-loras 8 --max-cpu-loras 4", "8 is above max_cpu_loras 4", {"max_cpu_loras": 8}),
        ("--lora-modules a=/a", "needs enable_lora", {"enable_lora": True}),
        ("--enable-log-outputs", "needs enable_log_requests", {"enable_log_requests": True}),
        (
            "--enable-per-request-metrics --disable-log-stats",
            "together with disable_log_stats",
            {"disable_log_stats": None},
        ),
        ("--enable-dbo", "needs all2all_backend", {"enable_dbo": None}),
        ("--numa-bind-nodes 0 1", "needs numa_bind", {"numa_bind": True}),
        (
            "--max-cudagraph-capture-size 64 --cudagraph-capture-sizes 1 2 4",
            "is not the largest",
            {"max_cudagraph_capture_size": None},
        ),
        (
            '--async-scheduling --speculative-config {"method":"ngram","num_speculative_tokens":3}',
            "speculation by ngram",
            {"async_scheduling": None},
        ),
        ("-tp 4 -dcp 3", "3 does not divide tensor_parallel_size 4", {"decode_context_parallel_size": None}),
        (
            '--attention-backend FLASH_ATTN -ac {"backend":"TRITON_ATTN"}',
            "exclude each other",
            {"attention_backend": None},
        ),
        ("--enable-fault-tolerance --api-server-count 2", "needs one API server", {"api_server_count": 1}),
    ],
)
def test_an_invalid_combination_is_reported_with_its_fix(flags: str, why: str, to: dict[str, Value]) -> None:
    quoted = flags.replace("{", "'{").replace("}", "}'")
    (found,) = find_problems(case(f"vllm serve m {quoted}"))

    assert why in found.why
    assert found.to == to
    mended = {knob: value for knob, value in case(f"vllm serve m {quoted}").setting.items() if knob not in to}
    assert not list(find_problems(ServeConfig(setting={**mended, **to}, version="0.32.0")))


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--max-num-batched-tokens 128 --max-num-seqs 128",
        "--max-num-seqs 4096",
        "--no-enable-chunked-prefill",
        "-tp 2 --enable-eplb --enable-expert-parallel",
        "--enable-dbo --all2all-backend nixl_ep",
        "--async-scheduling --spec-method eagle3",
        "-tp 4 -dcp 2",
        "--max-cudagraph-capture-size 4 --cudagraph-capture-sizes 1 2 4",
        "--no-numa-bind",
        "--enable-auto-tool-choice --tool-call-parser hermes",
        "--lora-modules a=/a --enable-lora",
        "--max-num-seqs x --max-num-active-seqs 2",
    ],
)
def test_valid_and_unknown_combinations_are_accepted(flags: str) -> None:
    assert not list(find_problems(case(f"vllm serve m {flags}")))


def test_tool_choice_needs_a_parser_without_a_default() -> None:
    (found,) = find_problems(case("vllm serve m --enable-auto-tool-choice"))

    assert "needs tool_call_parser" in found.why
    assert not found.to


def test_vllm_defaults_count_if_the_gpu_is_known() -> None:
    (found,) = find_problems(case("vllm serve m --max-num-seqs 9000", card=H100))

    assert found.to == {"max_num_batched_tokens": 9000}


def test_expert_parallel_requires_a_moe_model() -> None:
    asked = "vllm serve m --enable-expert-parallel"

    assert "has no experts" in next(find_problems(case(asked, model=LLAMA_8B))).why
    assert not list(find_problems(case(asked, model=MIXTRAL)))


def test_grouped_heads_bound_how_far_a_cache_is_split() -> None:
    asked = "vllm serve m -tp 8 -dcp 2"

    assert "8 KV heads" in next(find_problems(case(asked, model=LLAMA_8B))).why
    assert not list(find_problems(case(asked.replace("-tp 8", "-tp 16"), model=LLAMA_8B)))
    assert not list(find_problems(case(asked, model=DEEPSEEK_R1)))


def test_the_catalogue_lists_the_checked_preconditions() -> None:
    for row in NOT_ABOVE:
        assert f"not above {row.high}" in " ".join(KNOBS[row.low].needs)
    assert all(KNOBS[row.knob].needs for row in REFUSED)
