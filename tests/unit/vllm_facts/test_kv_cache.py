"""The arithmetic of memory against what vLLM wrote when it started."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.vllm_facts.models.lookup import find_model, from_config
from flettner.vllm_facts.models.table import LINES
from flettner.vllm_facts.serve_config import GpuModel, Model, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, layout
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.sizing.kv_cache import (
    GIB,
    KvCacheFit,
    estimate_fit,
    estimate_state_blocks,
    kv_bytes_per_token,
    overhead_gib,
    weights_gib,
)
from flettner.vllm_facts.values import Setting
from tests.support.model_configs import llama
from tests.support.sampling import examples


def case(
    name: str, card: str = "", version: str = "0.32.0", **setting: bool | float | str | None
) -> ServeConfig:
    model = find_model(name)
    assert model is not None
    return ServeConfig(setting=setting, card=find_gpu(card), model=model, version=version)


def fitted(name: str, card: str, version: str = "0.32.0", **setting: bool | float | str | None) -> KvCacheFit:
    fit = estimate_fit(case(name, card, version, **setting))
    assert fit is not None
    return fit


@pytest.mark.parametrize(
    ("name", "setting", "gib", "error"),
    [  # "Model loading took …" in logs
        ("meta-llama/Meta-Llama-3-8B", {}, 14.96, 0.002),  # vllm PR 10511
        ("meta-llama/Meta-Llama-3-8B", {"tensor_parallel_size": 2}, 7.48, 0.002),
        ("Qwen/Qwen3-30B-A3B", {"tensor_parallel_size": 4}, 14.2474, 0.003),  # vllm issue 17469
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", {"tensor_parallel_size": 2}, 13.9476, 0.015),  # 13061
        ("openai/gpt-oss-120b", {}, 64.38, 0.002),  # 33155
        ("openai/gpt-oss-20b", {}, 13.72, 0.002),  # myoceane.fr: vLLM 0.19.0 on an A100
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"tensor_parallel_size": 2}, 74.2812, 0.002),  # 0.10.2 on H200
        ("meta-llama/Llama-3.2-1B-Instruct", {}, 2.3185, 0.01),
        ("Qwen/Qwen3-4B", {}, 7.6785, 0.03),  # amd-strix-halo-vllm-toolboxes PR 5
    ],
)
def test_weights_match_the_log(name: str, setting: Setting, gib: float, error: float) -> None:
    config = ServeConfig(setting=setting, model=find_model(name))
    assert weights_gib(config, layout(config)) == pytest.approx(gib, rel=error)


@pytest.mark.parametrize(
    ("name", "setting", "gib", "tokens", "error"),
    [  # GiB of KV cache per GPU, and the tokens in it
        ("Qwen/Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 4}, 8.11, 178_880, 0.012),  # vllm issue 21348
        ("Qwen/Qwen3-4B-AWQ", {}, 36.88, 268_560, 0.001),  # vllm PR 57047; the model by its sizes
        (
            "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
            {"data_parallel_size": 8},
            62.0,
            262_144,
            0.001,
        ),  # recipes PR 12
        (
            "MiniMaxAI/MiniMax-M2",
            {"tensor_parallel_size": 2},
            23.25,
            196_608,
            0.001,
        ),  # spark-vllm-docker issue 396 (M2.7)
        ("MiniMaxAI/MiniMax-M2", {"tensor_parallel_size": 2}, 28.74, 240_816, 0.012),
        ("Qwen/Qwen2.5-3B-Instruct", {}, 3.75, 109_264, 0.001),  # 0.18.0, bitsandbytes
        # vLLM recipes, Kimi-K2-Thinking: eight times the tokens with decode context parallel
        ("moonshotai/Kimi-K2-Thinking", {"tensor_parallel_size": 8}, 46.80, 715_072, 0.001),
        (
            "moonshotai/Kimi-K2-Thinking",
            {"tensor_parallel_size": 8, "decode_context_parallel_size": 8},
            46.80,
            5_721_088,
            0.001,
        ),
    ],
)
def test_kv_bytes_per_token_match_the_log(
    name: str, setting: Setting, gib: float, tokens: int, error: float
) -> None:
    config = ServeConfig(setting=setting, model=find_model(name))
    assert kv_bytes_per_token(config, layout(config)) == pytest.approx(gib * GIB / tokens, rel=error)


def test_kv_bytes_per_token_match_real_vllm_on_a_small_model() -> None:
    """Compare kv_cache_memory_bytes and kv_cache_size_tokens of tests/sensors/scrapes/vllm-0.32.txt."""
    model = from_config(llama(4, 256, 512, 4, 2, vocab=2048), "tiny")
    assert kv_bytes_per_token(ServeConfig(setting={}, model=model), Layout()) == 1_073_741_824 / 524_288


@pytest.mark.parametrize(
    ("name", "card", "version", "setting", "kv_gib"),
    [  # "Available KV cache memory: …"
        (
            "meta-llama/Meta-Llama-3-8B",
            "H100",
            "0.6.4",
            {"max_num_batched_tokens": 8192, "max_num_seqs": 256},
            53.29,
        ),
        ("Qwen/Qwen3-4B-AWQ", "RTX 4090 48GB", "0.29.0", {"gpu_memory_utilization": 0.85}, 36.88),
        ("Qwen/Qwen3-235B-A22B-FP8", "NVIDIA H100 80GB HBM3", "0.9.2", {"tensor_parallel_size": 4}, 8.11),
        (
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
            "RTX 4090",
            "0.7.2",
            {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.98},
            8.69,
        ),
        (
            "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
            "NVIDIA H20 141GB",
            "0.10.1",
            {"data_parallel_size": 8, "enable_expert_parallel": True},
            48.66,
        ),
        ("openai/gpt-oss-20b", "A100 SXM 80GB", "0.19.0", {"gpu_memory_utilization": 0.65}, 36.56),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "H200", "0.10.2", {"tensor_parallel_size": 2}, 44.59),
        ("moonshotai/Kimi-K2-Thinking", "H200", "0.11.0", {"tensor_parallel_size": 8}, 46.80),  # recipes
    ],
)
def test_the_kv_cache_is_within_five_percent_of_the_budget(
    name: str, card: str, version: str, setting: dict[str, bool | float], kv_gib: float
) -> None:
    fit = fitted(name, card, version, **setting)
    assert abs(fit.kv_gib - kv_gib) <= 0.05 * fit.budget_gib


LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("name", "card", "version", "setting", "tokens", "sequences"),
    [  # "GPU KV cache size: … tokens, Maximum concurrency for … tokens per request: …x"
        (LLAMA_8B, "A100-SXM4-40GB", "0.19.0", {"max_model_len": 32768}, 163_168, 4.98),  # note of 2026-05-03
        (LLAMA_8B, "RTX A6000", "0.19.0", {"max_model_len": 32768}, 221_824, 6.77),  # on an experiment's GPUs
        (LLAMA_8B, "H100 NVL", "0.19.0", {"max_model_len": 32768}, 545_456, 16.65),
        (  # vllm issue 10517: no chunked prefill yet, the whole prompt is profiled
            LLAMA_8B,
            "RTX 3090",
            "0.6.4",
            {"max_model_len": 20000, "max_num_batched_tokens": 20000},
            31_232,
            1.56,
        ),
        ("meta-llama/Llama-3.2-1B-Instruct", "L40S", "0.10.0", {}, 1_215_552, 9.27),  # 44.3 GiB card
        (
            "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
            "L40S",
            "0.10.2",
            {
                "tensor_parallel_size": 2,
                "enable_expert_parallel": True,
                "gpu_memory_utilization": 0.95,
                "max_model_len": 32768,
            },
            566_016,
            17.27,
        ),
        (  # a hybrid: reported requests, since the token count is wrong (vllm issue 40691)
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            "H200",
            "0.10.2",
            {"tensor_parallel_size": 2},
            3_871_867,
            14.77,
        ),
    ],
)
def test_tokens_and_full_length_sequences_are_within_six_percent_of_the_log(
    name: str,
    card: str,
    version: str,
    setting: dict[str, bool | float],
    tokens: int,
    sequences: float,
) -> None:
    fit = fitted(name, card, version, **setting)
    assert fit.kv_tokens == pytest.approx(tokens, rel=0.06)
    assert fit.full_length_sequences == pytest.approx(sequences, rel=0.06)


@pytest.mark.parametrize(
    ("name", "card", "setting", "fits"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "RTX 5070", {"max_model_len": 16384, "kv_cache_dtype": "fp8"}, True),
        ("ArtusDev/nvidia_Llama-3.1-Nemotron-Nano-8B-v1-AWQ", "T4", {"max_model_len": 2048}, True),
        ("RedHatAI/NVIDIA-Nemotron-Nano-9B-v2-quantized.w4a16", "T4", {"max_model_len": 2048}, True),
        ("Qwen/Qwen3-VL-2B-Instruct", "L4", {"max_model_len": 8192}, True),
        ("meta-llama/Llama-2-70b-hf", "A100-40GB", {"tensor_parallel_size": 4}, None),
        ("meta-llama/Llama-3.1-8B-Instruct", "T4", {}, False),
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", {}, False),
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", {"tensor_parallel_size": 2}, False),
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", {"tensor_parallel_size": 4}, True),
        ("deepseek-ai/DeepSeek-R1", "H100", {"tensor_parallel_size": 8}, False),
        ("deepseek-ai/DeepSeek-R1", "H200", {"tensor_parallel_size": 8}, True),
        ("deepseek-ai/DeepSeek-R1", "H100", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, True),
        ("openai/gpt-oss-120b", "H100", {}, None),  # vllm issues 27508 and 33155: some start, some do not
        ("openai/gpt-oss-120b", "H200", {}, True),
    ],
)
def test_predicts_the_fit_before_a_start(
    name: str, card: str, setting: dict[str, bool | float | str | None], *, fits: bool | None
) -> None:
    assert fitted(name, card, "0.32.0", **setting).fits is fits


def test_message_contains_the_numbers() -> None:
    fit = fitted("meta-llama/Llama-3.1-8B-Instruct", "L4", max_model_len=8192)
    assert fit.why == (
        "weights take 15.0 GiB and the rest of the work about 1.4 of 20.5 GiB on each L4, "
        "which leaves about 34,000 tokens of KV cache: 4.1 requests of 8,192"
    )
    assert fit.full_length_sequences == pytest.approx(4.1, abs=0.05)
    missing = fitted("meta-llama/Llama-3.1-8B-Instruct", "T4")
    assert missing.why.endswith("on each T4: 2.7 GiB are missing before any KV cache")
    assert missing.kv_tokens == 0


def test_predicts_no_start_without_a_known_length() -> None:
    fit = fitted("Qwen/QwQ-32B", "H200")
    assert (fit.fits, fit.full_length_sequences) == (None, None)
    assert fitted("Qwen/QwQ-32B", "T4").fits is False  # the weights alone are too much
    assert fitted("Qwen/Qwen3-8B", "H100", max_model_len="auto").full_length_sequences is None


def test_hybrid_holds_fewer_tokens_than_its_attention_layers_alone() -> None:
    """club-3090 issue 612: 5.98 GiB held 567,978 tokens of 8 bit, the recurrent states among them."""
    each = kv_bytes_per_token(case("Qwen/Qwen3.6-35B-A3B", kv_cache_dtype="fp8"), Layout())
    assert each is not None
    assert 567_978 < 5.98 * GIB / each < 1.15 * 567_978


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("Qwen/Qwen3-8B", "about"),
        ("google/gemma-3-27b-it", "at least"),  # most layers keep a window
        ("openai/gpt-oss-20b", "at least"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "at most"),  # and states besides
    ],
)
def test_states_the_direction_of_the_token_estimate_error(name: str, bound: str) -> None:
    assert fitted(name, "H100").bound == bound
    assert fitted("google/gemma-3-27b-it", "H100", disable_hybrid_kv_cache_manager=True).bound == "about"


def test_tensor_parallel_splits_heads_but_not_a_latent() -> None:
    llama_8b, deepseek = case("meta-llama/Llama-3.1-8B"), case("deepseek-ai/DeepSeek-V3")
    of_heads = [kv_bytes_per_token(llama_8b, Layout(tp=tp)) for tp in (1, 2, 8, 16)]
    assert of_heads == [131072, 65536, 16384, 16384]  # 8 heads: beyond 8 GPUs each head is replicated
    assert [kv_bytes_per_token(deepseek, Layout(tp=tp)) for tp in (1, 8)] == [70272, 70272]
    assert kv_bytes_per_token(llama_8b, Layout(pp=4)) == 131072 / 4


def test_data_parallel_splits_only_the_experts() -> None:
    dense, experts = case("meta-llama/Llama-3.1-8B"), case("deepseek-ai/DeepSeek-V3")
    assert weights_gib(dense, Layout(dp=1)) == weights_gib(dense, Layout(dp=8))
    tensor, data = weights_gib(experts, Layout(tp=8)), weights_gib(experts, Layout(dp=8))
    assert tensor is not None
    assert data is not None
    assert tensor == pytest.approx(626.7 / 8, rel=0.01)
    assert tensor < data < 1.25 * tensor  # attention and the shared expert are on every GPU


@pytest.mark.parametrize(
    ("kind", "times"),
    [("auto", 1), ("bfloat16", 1), ("fp8", 2), ("fp8_e5m2", 2), ("int4_per_token_head", 4), ("turbo9", None)],
)
def test_kv_cache_holds_more_tokens_in_fewer_bits(kind: str, times: float | None) -> None:
    each = kv_bytes_per_token(case("Qwen/Qwen3-8B", kv_cache_dtype=kind), Layout())
    assert each == (None if times is None else 147456 / times)


def test_counts_graph_memory_where_vllm_counts_it() -> None:
    now, before = case("Qwen/Qwen3-8B", "H100"), case("Qwen/Qwen3-8B", "H100", "0.19.1")
    eager = case("Qwen/Qwen3-8B", "H100", enforce_eager=True)
    sizes = [overhead_gib(config, Layout()) for config in (now, before, eager)]
    assert sizes[0] == pytest.approx((sizes[1] or 0) + 0.5)
    assert sizes[1] == sizes[2]


def test_takes_a_size_in_bytes_unchanged() -> None:
    fit = fitted("Qwen/Qwen3-8B", "H100", kv_cache_memory_bytes=10 * GIB)
    assert fit.kv_gib == pytest.approx(10)
    assert fitted("Qwen/Qwen3-8B", "T4", kv_cache_memory_bytes=10 * GIB).kv_gib < 0


def test_estimates_another_share_or_split() -> None:
    config = case("meta-llama/Llama-3.3-70B-Instruct", "H100", max_model_len=8192)
    four = Layout(tp=4)
    own, split, small = (
        estimate_fit(config),
        estimate_fit(config, shape=four),
        estimate_fit(config, shape=four, share=0.5),
    )
    assert own is not None
    assert split is not None
    assert small is not None
    assert (own.fits, split.fits) == (False, True)
    assert small.kv_tokens < split.kv_tokens


def test_counts_weights_quantized_at_load_at_their_reduced_size() -> None:
    plain, small = case("Qwen/Qwen3-8B"), case("Qwen/Qwen3-8B", quantization="fp8")
    assert weights_gib(small, Layout()) == pytest.approx((weights_gib(plain, Layout()) or 0) * 0.515)
    assert weights_gib(case("Qwen/Qwen3-8B", quantization="of_tomorrow"), Layout()) is None
    assert weights_gib(case("Qwen/Qwen3-8B", dtype="float32"), Layout()) == pytest.approx(30.5, abs=0.1)
    assert weights_gib(case("Qwen/Qwen3-8B", cpu_offload_gb=10), Layout()) == pytest.approx(5.26, abs=0.01)
    assert weights_gib(case("Qwen/Qwen3-8B", cpu_offload_gb=-1e300), Layout()) == weights_gib(plain, Layout())


def test_the_guides_formula_for_the_kv_cache_counts_the_heads_twice() -> None:
    """The formula multiplies hidden size by heads, which overestimates by the number of heads."""
    config = case("meta-llama/Llama-2-7b-hf")
    formula = 4096 * 32 * 2 * 4096 * 32 * 2
    assert formula == 32 * 4096 * (kv_bytes_per_token(config, Layout()) or 0)


@pytest.mark.parametrize(
    "config",
    [
        ServeConfig(setting={}),
        ServeConfig(setting={}, card=find_gpu("H100")),
        ServeConfig(setting={}, card=find_gpu("A100"), model=find_model("Qwen/Qwen3-8B")),  # 40 or 80 GB?
        ServeConfig(
            setting={}, card=find_gpu("H100"), model=Model(name="x", parameters=8e9, weight_bytes=2.0)
        ),
        ServeConfig(
            setting={"data_parallel_size": 2}, card=find_gpu("H100"), model=Model(name="x", experts=8)
        ),
        ServeConfig(
            setting={"kv_cache_dtype": "turbo9"}, card=find_gpu("H100"), model=find_model("Qwen/Qwen3-8B")
        ),
    ],
)
def test_unknown_facts_give_no_result(config: ServeConfig) -> None:
    assert estimate_fit(config) is None


SIZES = st.none() | st.integers(-2, 10**6) | st.floats(allow_nan=False) | st.sampled_from(["auto", "8k", "x"])


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(sorted(key for key in LINES if find_model(key))),
    st.floats(0.5, 300),
    st.dictionaries(
        st.sampled_from(
            [
                "max_model_len",
                "max_num_seqs",
                "max_num_batched_tokens",
                "tensor_parallel_size",
                "pipeline_parallel_size",
                "data_parallel_size",
                "decode_context_parallel_size",
                "kv_cache_memory_bytes",
                "cpu_offload_gb",
                "kv_cache_dtype",
                "quantization",
                "dtype",
            ]
        ),
        SIZES,
    ),
)
def test_handles_any_setting(key: str, gib: float, setting: dict[str, float | str | None]) -> None:
    fit = estimate_fit(
        ServeConfig(setting=setting, card=GpuModel(name="X", memory_gib=gib), model=find_model(key))
    )
    assert fit is None or (fit.kv_tokens >= 0 and fit.why)


def test_blocks_of_state_match_the_log() -> None:
    """3.86 GiB held 161 blocks with two GPUs (vllm-project/vllm#49064); 856 on an H100 (recipes#551)."""
    model = find_model("Qwen/Qwen3.6-27B")
    assert model is not None
    assert model.state_bytes is not None
    assert model.attention_layers is not None
    block = model.state_bytes / 2 * model.attention_layers
    assert 3.86 * GIB / block == pytest.approx(161, rel=0.01)

    blocks = estimate_state_blocks(case("Qwen/Qwen3.6-27B-FP8", "H100", gpu_memory_utilization=0.95))

    assert blocks is not None
    assert blocks[0] <= 856 <= blocks[1]


def test_a_state_is_counted_from_the_config() -> None:
    """Nemotron-Nano-9B-v2: 128 heads of 80, a state of 128 in 32 bit, 8 groups, a convolution of 4."""
    config = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*-",
        "mamba_num_heads": 128,
        "mamba_head_dim": 80,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
    }
    inner = 128 * 80

    assert from_config(config, "m").state_bytes == (inner + 2 * 8 * 128) * 3 * 2 + inner * 128 * 4
