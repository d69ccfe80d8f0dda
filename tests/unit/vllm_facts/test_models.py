"""Models by name and by config.json: two ways to the same numbers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.vllm_facts.models.config_json import read_config
from flettner.vllm_facts.models.lookup import canonical_name, find_model, from_config
from flettner.vllm_facts.models.parameters import count_parameters
from flettner.vllm_facts.models.table import LINES, find_row
from flettner.vllm_facts.serve_config import Model
from tests.support.model_configs import COUNTED, DEEPSEEK_V3, GPT_OSS, llama

KEYS = sorted(key for key in LINES if find_model(key))


def shipped(name: str) -> Model:
    model = find_model(name)
    assert model is not None, name
    return model


@pytest.mark.parametrize("name", COUNTED)
def test_table_agrees_with_the_model_config(name: str) -> None:
    table, config = shipped(name), from_config(COUNTED[name], name)
    assert config.weight_bytes == pytest.approx(table.weight_bytes, rel=0.003)
    loosely = ("name", "architecture", "weight_bytes", "source", "head_dim" if table.mla else "name")
    of_the_text_part = ("model_type",) if "ConditionalGeneration" in table.architecture else ()
    for field in Model.__slots__:
        if field not in (*loosely, *of_the_text_part):
            assert getattr(config, field) == getattr(table, field), field


@pytest.mark.parametrize("name", COUNTED)
def test_parameter_counts_of_the_table_match_the_shapes(name: str) -> None:
    table, counted = shipped(name), read_config(COUNTED[name], "other/model")
    assert count_parameters(COUNTED[name]) == pytest.approx(table.parameters, rel=0.02)
    assert counted.active_parameters == pytest.approx(
        table.active_parameters, rel=0.25 if table.experts else 0.02
    )


def test_every_line_of_the_table_is_consistent() -> None:
    for key in KEYS:
        row, model = find_row(key), shipped(key)
        assert row is not None
        assert canonical_name(key) == key
        assert row.source, key
        if row.heads and row.kv_heads:
            assert row.heads % row.kv_heads == 0, key
        assert 0 <= row.apart < row.parameters, key
        assert (row.active or row.billions) <= row.billions, key
        assert (row.experts is None) is (row.top is None), key
        assert row.kv_layers is None or (row.hybrid and row.kv_layers <= (row.layers or 0)), key
        assert row.latent is None or row.mla, key
        assert model.weight_bytes is not None, key
        assert 0.5 < model.weight_bytes <= 2.0, key


def test_the_table_has_some_500_models() -> None:
    assert len(KEYS) >= 900
    assert len({find_row(key).source for key in KEYS}) > 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 0.78),
        ("deepseek-ai/DeepSeek-R1", 3.13),
        ("Qwen/Qwen3-235B-A22B", 6.25),
    ],
)
def test_the_share_of_active_experts_is_as_reported(name: str, percent: float) -> None:
    model = shipped(name)
    assert (model.active_experts or 0) / (model.experts or 1) * 100 == pytest.approx(percent, abs=0.006)


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("NousResearch/Meta-Llama-3-8B", "llama-3-8b"),
        ("casperhansen/llama3-8b", "llama-3-8b"),
        ("/models/Qwen2.5-14B-Instruct/", "qwen2.5-14b-instruct"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0a1b2c", "qwen3-8b"),
        ("/data/Qwen3-8B/model/", "qwen3-8b"),
        ("s3://bucket/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("acme/llama-3.1-8b-legal-sft", "llama-3.1-8b"),
        ("nvidia/Llama-3_1-Nemotron-Nano-8B-v1", "llama-3.1-nemotron-nano-8b"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3.1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1-distill-qwen-32b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("ibm-granite/granite-4.0-h-small", "granite-4.0-h-small"),
        ("Qwen/Qwen3-VL-2B-Instruct", "qwen3-vl-2b"),
    ],
)
def test_recognises_a_name_in_any_spelling(name: str, same_as: str) -> None:
    assert shipped(name) == replace(shipped(same_as), name=name)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("acme/legal-llama-3.1-8b-sft", "llama-3.1-8b"),
        ("acme/dolphin-9.9-llama3-8b", "llama-3-8b"),
        ("IlyaGusev/saiga_llama3_8b", "llama-3-8b"),
        ("acme/German_Mixtral_8x7b", "mixtral-8x7b"),
    ],
)
def test_a_fine_tune_with_its_base_in_the_name_has_its_shapes(name: str, base: str) -> None:
    model = shipped(name)
    assert model == replace(shipped(base), name=name, vocab=None, weight_bytes=model.weight_bytes)


def test_the_size_of_a_mixed_format_is_unknown() -> None:
    model = shipped("QuantTrio/GLM-4.6-GPTQ-Int4-Int8Mix")
    assert (model.quantization, model.weight_bytes) == ("gptq", None)


@pytest.mark.parametrize(
    ("name", "quantization", "gib"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq", 5.2),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "awq", 5.3),
        ("ArtusDev/nvidia_Llama-3.1-Nemotron-Nano-8B-v1-AWQ", "awq", 5.3),
        ("RedHatAI/NVIDIA-Nemotron-Nano-9B-v2-quantized.w4a16", "compressed-tensors", 5.9),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "fp8", 29.0),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "fp8", 67.7),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq", 8.2),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "bitsandbytes", 5.3),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "modelopt_fp4", 39.8),
        ("RedHatAI/Llama-3.3-70B-Instruct-NVFP4A16", "compressed-tensors", 39.8),
        ("deepseek-ai/DeepSeek-R1", "fp8", 626.7),
        ("unsloth/DeepSeek-V3-BF16", "", 1249.9),
        ("openai/gpt-oss-120b", "mxfp4", 64.4),
        ("moonshotai/Kimi-K2-Thinking", "compressed-tensors", 554.5),
        ("ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g", "gptq", 15.2),
        ("Qwen/Qwen3-8B", "", 15.3),
    ],
)
def test_quantization_format_in_the_name_sets_the_size(name: str, quantization: str, gib: float) -> None:
    model = shipped(name)
    assert model.quantization == quantization
    assert (model.parameters or 0) * (model.weight_bytes or 0) / 2**30 == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "default",
        "acme/secret-model",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        "nvidia/Llama-3.1-8B-Eagle3",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-3B",
        "deepseek-ai/DeepSeek-V3-tiny-random",
        "mistralai/Mistral-7B-12L-0.5b",
        "Qwen/Qwen3-4Bit",
        "Qwen/Qwen3-80B",
        "acme/Qwen3-8B-VL",
        "z-lab/Qwen3-8B-DFlash-b16",
        "cerebras/GLM-4.5-Air-REAP-82B-A12B",
        "mistralai/Mistral-Large-4-200B",
        "acme/llava-llama-3-8b",
        "fixie-ai/ultravox-v9-llama-3_1-8b",
        "acme/Qwen2.5-7B-MoE",
        "openbmb/MiniCPM-V-9-qwen2.5-7b",
        "Qwen/Qwen3-32B-$FORMAT",
        "meta-llama/Llama-3.1-70B-<format>",
    ],
)
def test_another_model_is_not_mistaken_for_a_known_one(name: str) -> None:
    assert find_model(name) is None


@pytest.mark.parametrize(
    ("name", "max_len"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 32768),
        ("Qwen/Qwen2.5-7B", 131072),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 1010000),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", 262144),
        ("gradientai/Llama-3-8B-Instruct-262k", None),
        ("gradientai/Llama-3-8B-Instruct-Gradient-1048k", None),
        ("NousResearch/Yarn-Mistral-7b-128k", None),
        ("microsoft/Phi-3-mini-4k-instruct", 4096),
        ("microsoft/Phi-3-mini-128k-instruct", 131072),
        ("moonshotai/Kimi-K2-Instruct-0905", 262144),
    ],
)
def test_the_length_follows_the_name(name: str, max_len: int | None) -> None:
    assert shipped(name).max_len == max_len


def test_reads_the_nested_language_model_of_a_multimodal_config() -> None:
    inner = llama(28, 2048, 6144, 16, 8, head_dim=128, model_type="qwen3_vl_text")
    model = from_config(
        {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": inner}, "acme/eyes"
    )
    assert (model.layers, model.kv_heads, model.head_dim) == (28, 8, 128)
    assert model.architecture == "Qwen3VLForConditionalGeneration"


def test_kv_heads_default_to_attention_heads() -> None:
    config = llama(4, 256, 512, 4, 2)
    del config["num_key_value_heads"]
    assert from_config(config, "x").kv_heads == 4
    assert from_config(config | {"multi_query": True}, "x").kv_heads == 1
    assert from_config(config | {"num_kv_heads": [4, 2]}, "x").kv_heads is None  # it differs by layer


@pytest.mark.parametrize(
    ("more", "hybrid", "attention"),
    [
        ({"hybrid_override_pattern": "M-M*-ME*"}, True, 2),
        ({"layers_block_type": ["mamba", "attention", "moe", "mamba"]}, True, 1),
        ({"layer_types": ["mamba", "mamba", "attention", "mamba"]}, True, 1),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, True, 1),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, False, None),
        ({"layer_types": ["attention"] * 4, "mamba_d_state": 256}, False, None),  # granite-4.0-micro
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "num_hidden_layers": 32}, True, 4),  # Jamba
        ({"full_attention_interval": 4, "num_hidden_layers": 48}, True, 12),  # Qwen3-Next
        ({"linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]}}, True, 7),  # Kimi-Linear
        ({"model_type": "mamba2"}, True, 0),
        ({"mamba_d_ssm": 1024}, True, None),
        ({}, False, None),
    ],
)
def test_distinguishes_layers_without_a_kv_cache(
    more: dict[str, Any], *, hybrid: bool, attention: int | None
) -> None:
    model = from_config(llama(4, 256, 512, 4, 2) | more, "acme/hybrid")
    assert (model.hybrid, model.attention_layers) == (hybrid, attention)


@pytest.mark.parametrize(
    ("quantization", "method", "size"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 0.52),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq", 1.02),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1.0),
        ({"quant_method": "mxfp4"}, "mxfp4", 0.531),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 0.52),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", None),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "modelopt_fp4", 0.5625),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8}}}},
            "compressed-tensors",
            1.0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 8}}, "b": {"weights": {"num_bits": 4}}},
            },
            "compressed-tensors",
            None,
        ),
        ({"quant_method": "of tomorrow"}, "of tomorrow", None),
    ],
)
def test_quantization_is_read_from_the_config(
    quantization: dict[str, Any], method: str, size: float | None
) -> None:
    model = from_config(llama(80, 8192, 28672, 64, 8) | {"quantization_config": quantization}, "acme/big")
    assert model.quantization == method
    if size is None:
        assert model.weight_bytes is None
    else:  # embedding and output, 3 % of the parameters, stay in 16 bit
        assert model.weight_bytes == pytest.approx(size * 0.97 + 2 * 0.03, abs=0.01)


def test_mla_has_one_cache_for_all_heads() -> None:
    model = from_config(DEEPSEEK_V3, "deepseek-ai/DeepSeek-V3")
    assert (model.mla, model.latent_dim) == (True, 576)
    assert from_config(DEEPSEEK_V3 | {"model_type": "minicpm3"}, "x").mla is False
    assert from_config(DEEPSEEK_V3 | {"compress_ratios": [4]}, "x").latent_dim is None


def test_weights_in_a_log_override_the_file_sizes() -> None:
    config = COUNTED["openai/gpt-oss-120b"]
    assert from_config(config, "openai/gpt-oss-120b").weight_bytes == 0.592
    assert from_config(GPT_OSS, "openai/gpt-oss-120b").weight_bytes != 0.592  # another shape under that name


def test_an_unknown_family_is_not_counted() -> None:
    model = from_config(llama(4, 256, 512, 4, 2) | {"model_type": "of_tomorrow"}, "acme/x")
    assert (model.parameters, model.active_parameters) == (None, None)
    assert model.layers == 4


def test_empty_config_yields_no_facts() -> None:
    model = from_config({}, "acme/x")
    assert model == Model(name="acme/x", weight_bytes=2.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_handles_any_config(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([DEEPSEEK_V3, GPT_OSS, COUNTED["Qwen/Qwen3-8B"]]))
    extra = (
        "hybrid_override_pattern",
        "layers_block_type",
        "attn_layer_period",
        "text_config",
        "rope_scaling",
    )
    keys = st.sampled_from([*base, *extra, "quantization_config", "linear_attn_config", "dtype"])
    config = base | data.draw(st.dictionaries(keys, JSON, max_size=4))
    model = from_config(config, data.draw(st.text(max_size=30)))
    assert model.weight_bytes is None or model.weight_bytes > 0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_handles_any_model_name(name: str) -> None:
    assert "/" not in canonical_name(name)
    assert find_model(name) is None or name


def test_a_config_gives_the_shapes_that_tensor_parallelism_divides() -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    text = {
        "intermediate_size": 6144,
        "moe_intermediate_size": 1536,
        "num_experts": 128,
        "vocab_size": 151936,
    }
    model = read_config({"model_type": "qwen3_moe", **text, "quantization_config": blocks}, "acme/moe")

    assert (model.model_type, model.vocab) == ("qwen3_moe", 151936)
    assert (model.intermediate, model.moe_intermediate, model.weight_block) == (6144, 1536, (128, 128))


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ({"num_experts": 60, "shared_expert_intermediate_size": 5632}, 5632),
        ({"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1408}, 2816),
        ({"num_local_experts": 8}, None),
        ({"shared_expert_intermediate_size": 5632}, None),
    ],
)
def test_the_shared_experts_of_a_layer_have_one_width(text: dict[str, int], width: int | None) -> None:
    assert read_config({"intermediate_size": 4096, **text}, "acme/moe").shared_intermediate == width


def test_an_expert_without_a_width_of_its_own_is_as_wide_as_the_mlp() -> None:
    model = read_config({"intermediate_size": 14336, "num_local_experts": 8}, "acme/moe")

    assert model.moe_intermediate == 14336
    assert read_config({"intermediate_size": 14336}, "acme/dense").moe_intermediate is None


@pytest.mark.parametrize("size", [None, [], [128], [0, 128], ["a", "b"], 128, [True, True]])
def test_an_unreadable_weight_block_is_unknown(size: object) -> None:
    assert read_config({"quantization_config": {"weight_block_size": size}}, "acme/m").weight_block is None


@pytest.mark.parametrize(
    ("name", "block", "width"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", (128, 128), 1536),
        ("acme/Qwen3-235B-A22B-FP8-dynamic", None, 1536),
        ("MiniMaxAI/MiniMax-M2", (128, 128), 1536),
        ("deepseek-ai/DeepSeek-V3", (128, 128), 2048),
        ("Qwen/Qwen3-8B", None, None),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", None, None),
        ("zai-org/GLM-4.6-FP8", None, 1536),
        ("zai-org/GLM-5-FP8", (128, 128), 2048),
        ("unsloth/DeepSeek-V3-BF16", None, 2048),
    ],
)
def test_the_block_of_fp8_weights_follows_from_the_maker(
    name: str, block: tuple[int, int] | None, width: int | None
) -> None:
    assert (shipped(name).weight_block, shipped(name).moe_intermediate) == (block, width)
