"""What vLLM refuses for a model or a GPU: dtypes, quantizations, shapes, adapters."""

from dataclasses import replace
from typing import Any

import pytest

from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import GpuModel, Model, ServeConfig
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.validity.refusal import InvalidSetting
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import (
    A10,
    A100,
    DEEPSEEK_R1,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    QWEN_7B_AWQ,
    QWEN_235B,
    T4,
    case,
    dense,
)

V100 = GpuModel(name="V100", capability=(7, 0), memory_gib=32.0)
AWQ = replace(QWEN_7B_AWQ, quantization="awq")
GEMMA_1B = find_model("google/gemma-3-1b-it")
GEMMA_12B = find_model("google/gemma-3-12b-it")
GPT_OSS = find_model("openai/gpt-oss-20b")
BLOCKS = replace(QWEN_235B, quantization="fp8", weight_block=(128, 128), moe_intermediate=1536)


def refusals(flags: str, **facts: Any) -> list[InvalidSetting]:  # noqa: ANN401 - the fields of ServeConfig
    return list(find_problems(case(f"vllm serve m {flags}", **facts)))


def refusal(flags: str, **facts: Any) -> InvalidSetting:  # noqa: ANN401
    (found,) = refusals(flags, **facts)
    assert found.source.startswith("vLLM 0.32 ")
    return found


def mended(flags: str, to: dict[str, Value], **facts: Any) -> ServeConfig:  # noqa: ANN401
    asked = case(f"vllm serve m {flags}", **facts)
    setting = {knob: value for knob, value in {**asked.setting, **to}.items() if value is not None}
    return replace(asked, setting=setting)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gemma3_text", "glm4"])
def test_a_model_that_is_unstable_in_float16_is_refused_in_it(kind: str) -> None:
    unstable = replace(LLAMA_8B, model_type=kind)

    found = refusal("--dtype half", model=unstable, card=A10)

    assert (found.rule, found.to) == ("H2", {"dtype": "bfloat16"})
    assert "does not support float16" in found.source
    assert refusal("--dtype float16", model=unstable).to == {"dtype": None}
    assert not refusals("--dtype bfloat16", model=unstable, card=A10)
    assert not refusals("--dtype half", model=replace(unstable, model_type="gemma"), card=A10)


def test_such_a_model_runs_in_float32_only_where_bfloat16_is_missing() -> None:
    for dtype in ("bfloat16", "half"):
        found = refusal(f"--dtype {dtype}", model=GEMMA_1B, card=T4)
        assert found.to == {"dtype": "float32"}
        assert "cannot run this model in 16 bit" in found.why
        assert not refusals("--dtype float32", model=GEMMA_1B, card=T4)
    assert not refusals("", model=GEMMA_1B, card=T4)


def test_float32_is_not_offered_where_it_does_not_fit() -> None:
    found = refusal("--dtype bfloat16", model=GEMMA_12B, card=T4)

    assert not found.to
    assert "float32, which does not fit" in found.why
    assert "8.0 or later" in found.expects


def test_float32_is_not_offered_where_the_quantization_refuses_it() -> None:
    assert GEMMA_1B is not None
    quantized = replace(GEMMA_1B, quantization="awq")

    assert not refusal("--dtype half", model=quantized, card=T4).to
    assert "which vLLM chooses for this GPU" in refusal("", model=quantized, card=T4).why


def test_a_gpu_without_bfloat16_gets_float16_or_the_choice_of_vllm() -> None:
    assert refusal("--dtype bfloat16", model=LLAMA_8B, card=T4).to == {"dtype": "half"}
    assert refusal("--dtype bfloat16", card=T4).to == {"dtype": None}


@pytest.mark.parametrize(
    ("method", "card", "refused"),
    [
        ("fp8", V100, True),
        ("fp8", T4, False),
        ("awq", V100, True),
        ("awq", T4, False),
        ("gptq", V100, False),
        ("mxfp4", T4, True),
        ("mxfp4", A100, False),
        ("modelopt_fp4", V100, True),
        ("compressed-tensors", T4, False),
        ("auto-round", V100, False),
        ("unheard-of", V100, False),
    ],
)
def test_a_quantization_needs_a_compute_capability(method: str, card: GpuModel, refused: bool) -> None:
    found = refusals("", model=replace(LLAMA_8B, quantization=method), card=card)

    assert [problem.rule for problem in found] == ["H2"] * refused
    assert not any(problem.to for problem in found)


def test_fp8_weights_run_on_turing_since_it_has_the_marlin_kernels() -> None:
    model = replace(LLAMA_8B, quantization="fp8")

    assert "fp8 needs 8.0" in refusal("", model=model, card=T4, version="0.12.0").why
    assert not refusals("", model=model, card=T4, version="0.14.0")


def test_a_quantization_that_a_flag_asks_for_can_be_left_out() -> None:
    found = refusal("--quantization fp8", model=LLAMA_8B, card=V100)

    assert found.to == {"quantization": None}


def test_quantized_weights_run_in_the_dtypes_of_their_kernels() -> None:
    found = refusal("--dtype float32", model=AWQ, card=A10)

    assert found.to == {"dtype": None}
    assert "is not supported for quantization method awq" in found.source
    assert refusal("--dtype half", model=GPT_OSS, card=H100).to == {"dtype": None}
    assert not refusals("--dtype half", model=AWQ, card=T4)


@pytest.mark.parametrize(
    ("flags", "model", "card", "refused"),
    [
        ("--kv-cache-dtype fp8", LLAMA_8B, T4, True),
        ("--kv-cache-dtype fp8", LLAMA_8B, A10, False),
        ("--kv-cache-dtype fp8", GPT_OSS, A100, True),
        ("--kv-cache-dtype fp8", GPT_OSS, L40S, False),
        ("--kv-cache-dtype fp8", GEMMA_12B, A10, True),
        ('--kv-cache-dtype fp8 --limit-mm-per-prompt {"image":0}', GEMMA_12B, A10, False),
        ("--kv-cache-dtype fp8", dense("phi", 4, head_dim=96), A10, True),
        ("--kv-cache-dtype fp8 --dtype float32", LLAMA_8B, A10, True),
        ("--kv-cache-dtype fp8_per_token_head", LLAMA_8B, A10, True),
        ("--kv-cache-dtype fp8 --attention-backend FLASHINFER", LLAMA_8B, A10, False),
        ("--kv-cache-dtype fp8 --attention-backend TRITON_ATTN", LLAMA_8B, A10, True),
        ("--kv-cache-dtype fp8 --attention-backend FLASH_ATTN", LLAMA_8B, L40S, True),
        ("--kv-cache-dtype fp8 --attention-backend FLASH_ATTN", LLAMA_8B, H100, False),
        ("--kv-cache-dtype bfloat16", LLAMA_8B, T4, True),
        ("--kv-cache-dtype nvfp4", LLAMA_8B, T4, True),
        ("--kv-cache-dtype fp8", DEEPSEEK_R1, A100, False),
    ],
)  # fmt: skip
def test_a_kv_cache_needs_a_backend_that_reads_it(
    flags: str, model: Model, card: GpuModel, refused: bool
) -> None:
    found = refusals(flags.replace("{", "'{").replace("}", "}'"), model=model, card=card)

    assert [(one.rule, one.to) for one in found] == [("H2", {"kv_cache_dtype": None})] * refused
    assert not refusals(flags.split(maxsplit=1)[0] + " auto", model=model, card=card)


@pytest.mark.parametrize(
    ("backend", "model", "card", "message"),
    [
        ("FLASH_ATTN", DEEPSEEK_R1, H100, "'MLA not supported'"),
        ("FLASHMLA", LLAMA_8B, H100, "'non-MLA not supported'"),
        ("FLASHINFER", dense("phi", 4, head_dim=96), H100, "head_size not supported"),
        ("FLASH_ATTN", GPT_OSS, A100, "sinks not supported"),
        ("FLASHINFER", GPT_OSS, H100, ""),
        ("FLASHMLA", DEEPSEEK_R1, H100, ""),
        ("TRITON_ATTN", GPT_OSS, A100, ""),
        ("auto", DEEPSEEK_R1, H100, ""),
    ],
)
def test_a_forced_attention_backend_supports_the_attention_of_the_model(
    backend: str, model: Model, card: GpuModel, message: str
) -> None:
    found = refusals(f"--attention-backend {backend}", model=model, card=card)

    assert [one.to for one in found] == [{"attention_backend": None}] * bool(message)
    assert all(message in one.source for one in found)
    assert not refusals(f"--attention-backend {backend}", model=model, card=card, version="0.19.0")


def test_a_backend_inside_the_json_is_removed_there() -> None:
    flags = """--attention-config '{"backend":"FLASH_ATTN","flash_attn_version":3}'"""

    assert refusal(flags, model=DEEPSEEK_R1).to == {"attention_config": '{"flash_attn_version":3}'}
    assert "runs in float32" in refusal("--attention-backend FLASH_ATTN --dtype float32", model=LLAMA_8B).why


def test_a_kv_cache_agrees_with_the_checkpoint() -> None:
    fp8 = replace(LLAMA_8B, quantization="fp8")

    assert refusal("--kv-cache-dtype fp8_e5m2", model=fp8).to == {"kv_cache_dtype": "fp8"}
    assert refusal("--kv-cache-dtype nvfp4", model=DEEPSEEK_R1, card=H200).to == {"kv_cache_dtype": None}


@pytest.mark.parametrize(
    ("facts", "tp", "why"),
    [
        ({"heads": 28, "kv_heads": 4}, 8, "28 attention heads"),
        ({"heads": 48, "kv_heads": 48, "hidden_size": 6144, "vocab": 151936}, 3, "151936 rows"),
        ({"heads": 48, "kv_heads": 48, "hidden_size": 6144, "intermediate": 11008}, 3, "11008 units"),
        ({"kv_heads": 6, "heads": 48}, 4, "6 KV heads"),
    ],
)
def test_tensor_parallelism_divides_every_size_of_the_model(facts: dict[str, Any], tp: int, why: str) -> None:
    found = refusal(f"-tp {tp}", model=dense("m", 7, **facts))

    assert found.rule == "D3"
    assert why in found.why


def test_the_vocabulary_is_padded_to_a_multiple_of_64() -> None:
    assert not refusals("-tp 4", model=dense("m", 7, vocab=50257))


def test_more_gpus_than_the_host_has_are_refused() -> None:
    assert "takes 4 GPUs of 2" in refusal("-tp 4", gpus=2).why
    assert not refusals("-tp 4 --nnodes 2", gpus=2)


def test_a_dense_fp8_checkpoint_is_divided_at_its_blocks() -> None:
    model = dense("m", 4, intermediate=9728, quantization="fp8", weight_block=(128, 128))

    assert "1216 of 9728" in refusal("-tp 8", model=model).why
    assert not refusals("-tp 4", model=model)
    assert not refusals("-tp 1", model=replace(model, intermediate=9700))


def test_an_fp8_expert_is_divided_at_its_blocks_or_kept_whole() -> None:
    found = refusal("-tp 8", model=BLOCKS, version="0.10.0")

    assert "leaves 192 for each" in found.why
    assert found.to == {"enable_expert_parallel": True}
    assert "is not divisible by weight quantization block_n" in found.source
    assert not refusals("-tp 8 --enable-expert-parallel", model=BLOCKS, version="0.10.0")
    assert not refusals("-tp 4", model=BLOCKS, version="0.10.0")
    assert not refusals("-tp 8", model=BLOCKS, version="")


def test_balancing_of_experts_is_mended_where_the_model_is_known() -> None:
    assert refusal("-tp 8 --enable-eplb", model=QWEN_235B).to == {"enable_expert_parallel": True}
    assert refusal("-tp 2 --enable-eplb", model=LLAMA_8B).to == {"enable_eplb": None}

    unknown = refusal("-tp 2 --enable-eplb")
    assert (unknown.to, "if the model has experts" in unknown.expects) == ({}, True)


def test_the_ranks_of_data_parallelism_divide_an_expert_too() -> None:
    assert "over 8 GPUs" in refusal("-tp 2 -dp 4", model=BLOCKS, version="0.19.0").why


def test_the_current_release_divides_the_blocks_down_to_32() -> None:
    assert not refusals("-tp 8", model=BLOCKS)
    assert refusals("-tp 8 --moe-backend deep_gemm", model=BLOCKS)
    assert "leaves 176" in refusal("-tp 8", model=replace(BLOCKS, moe_intermediate=1408)).why


def test_a_layout_that_does_not_divide_the_heads_is_not_refused_for_its_experts_as_well() -> None:
    assert refusal("-tp 3", model=BLOCKS).rule == "D3"


def test_an_expert_that_no_number_of_gpus_divides_is_kept_whole() -> None:
    model = replace(BLOCKS, weight_block=None, moe_intermediate=1500)

    assert refusal("-tp 8", model=model).to == {"enable_expert_parallel": True}


@pytest.mark.parametrize(
    ("flags", "why", "to"),
    [
        ("--enable-lora --max-lora-rank 48", "48 is none of 1, 8, 16", {"max_lora_rank": 64}),
        ("--enable-lora --max-lora-rank 1024", "1024 is none of", {}),
        ("--offload-backend prefetch", "needs offload_group_size", {"offload_backend": None}),
        (
            "--offload-group-size 8 --offload-prefetch-step 0",
            "offload_prefetch_step 0 is refused",
            {"offload_prefetch_step": None},
        ),
        (
            '--enable-lora --max-num-seqs 8 --max-num-batched-tokens 16 -sc {"num_speculative_tokens":3}',
            "below 8 sequences of 4 tokens",
            {"max_num_batched_tokens": 32},
        ),
        ("--enable-eplb --enable-expert-parallel", "needs tensor, data", {"enable_eplb": None}),
        ("-tp 3 --nnodes 2", "nnodes 2 does not divide the 3 GPUs", {}),
        (
            "-dp 2 --data-parallel-hybrid-lb --data-parallel-external-lb",
            "exclude each other",
            {"data_parallel_hybrid_lb": None},
        ),
    ],
)  # fmt: skip
def test_features_are_refused_without_what_they_need(flags: str, why: str, to: dict[str, Value]) -> None:
    quoted = flags.replace("{", "'{").replace("}", "}'")
    found = refusal(quoted)

    assert why in found.why
    assert found.to == to
    assert not to or not list(find_problems(mended(quoted, to)))


def test_without_chunked_prefill_the_budget_holds_the_model_own_length() -> None:
    flags = "--no-enable-chunked-prefill --max-num-batched-tokens 8192"

    assert refusal(flags, model=LLAMA_8B).to == {"enable_chunked_prefill": None}
    assert not refusals(f"{flags} --max-model-len 8192", model=LLAMA_8B)
    assert not refusals(flags)


def test_a_kv_connector_excludes_expandable_segments_except_in_sleep_mode() -> None:
    connector = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""
    env = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

    assert refusal(connector, env=env).env == {"PYTORCH_CUDA_ALLOC_CONF": None}
    assert not refusals(f"{connector} --enable-sleep-mode", env=env)
    assert not refusals(connector)


def test_each_kv_head_has_a_multiple_of_query_heads_for_context_parallelism() -> None:
    model = dense("m", 7, heads=48, hidden_size=6144)

    assert "the model's 6 query heads" in refusal("-tp 48 -dcp 4", model=model).why
    assert not refusals("-tp 48 -dcp 3", model=model)
