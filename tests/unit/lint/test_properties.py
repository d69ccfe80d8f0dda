"""Any command line, GPU and model: no crash, no flag that vLLM refuses, no harmful change."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flettner.lint.rules import environment, experts, hardware, memory, parallel, profile, switches, version
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases import FLAGS
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.parallel_layouts import apply_plan
from flettner.vllm_facts.values import Value
from tests.support import lint_cases
from tests.support.sampling import examples

LINTS = tuple(
    lint
    for module in (
        environment,
        experts,
        hardware,
        memory,
        parallel,
        profile,
        switches,
        version,
    )
    for lint in module.LINTS
)
CARDS = (
    None,
    lint_cases.T4,
    lint_cases.RTX_5070,
    lint_cases.A10,
    lint_cases.L40S,
    lint_cases.A100,
    lint_cases.H100,
    lint_cases.H200,
    lint_cases.GB200,
    lint_cases.MI300X,
)
MODELS = (
    None,
    lint_cases.QWEN_2B,
    lint_cases.LLAMA_8B,
    lint_cases.LLAMA_8B_AWQ,
    lint_cases.LLAMA_70B,
    lint_cases.QWEN_7B_AWQ,
    lint_cases.MAMBA_9B,
    lint_cases.MIXTRAL,
    lint_cases.MAVERICK,
    lint_cases.DEEPSEEK_R1,
    lint_cases.QWEN_235B,
    replace(lint_cases.LLAMA_8B, parameters=None, heads=None),
    replace(lint_cases.MIXTRAL, experts=None, weight_bytes=None),
)
VALUES: dict[str, tuple[Value, ...]] = {
    "tensor_parallel_size": (1, 2, 3, 4, 7, 8, 16),
    "pipeline_parallel_size": (1, 2, 3),
    "data_parallel_size": (1, 2, 8),
    "enable_expert_parallel": (True, False),
    "gpu_memory_utilization": (0.1, 0.5, 0.85, 0.9, 0.95, 1.0),
    "max_num_seqs": (1, 16, 64, 256, 1024),
    "max_num_batched_tokens": (64, 512, 2048, 16384),
    "max_model_len": (512, 4096, 32768, 1_000_000, "auto", -1),
    "enforce_eager": (True, False),
    "optimization_level": (0, 1, 2, 3),
    "compilation_config": ('{"cudagraph_mode":"NONE"}', "{", "3", '{"mode":3}'),
    "dtype": ("auto", "bfloat16", "half", "float32"),
    "quantization": ("awq", "fp8", "compressed-tensors"),
    "kv_cache_dtype": ("auto", "fp8", "nvfp4"),
    "attention_backend": ("FLASH_ATTN", "TRITON_ATTN", "XFORMERS"),
    "kv_offloading_size": (0, 8.0, 62),
    "disable_hybrid_kv_cache_manager": (True, False),
    "async_scheduling": (True, False),
    "enable_prefix_caching": (True, False),
    "enable_chunked_prefill": (True, False),
    "trust_remote_code": (True,),
    "host": ("0.0.0.0", "127.0.0.1", "::", "name"),  # noqa: S104 - an address that is only read
    "speculative_config": ('{"method":"ngram"}', '{"method":"eagle3"}', "[]"),
}
ENV = {
    "VLLM_ATTENTION_BACKEND": ("FLASHINFER", "FLASH_ATTN", ""),
    "NCCL_CUMEM_ENABLE": ("0", "1"),
    "NCCL_P2P_DISABLE": ("0", "1"),
    "VLLM_MOE_USE_DEEP_GEMM": ("0", "1"),
}
SETTINGS = st.fixed_dictionaries({}, optional={knob: st.sampled_from(of) for knob, of in VALUES.items()})
CASES = st.builds(
    ServeConfig,
    setting=SETTINGS,
    env=st.fixed_dictionaries({}, optional={name: st.sampled_from(of) for name, of in ENV.items()}),
    card=st.sampled_from(CARDS),
    gpus=st.sampled_from((None, 1, 2, 4, 8)),
    model=st.sampled_from(MODELS),
    version=st.sampled_from(("", "0.11.0", "0.14.0", "0.19.0", "0.32.0", "nightly")),
    profile=st.sampled_from(("", "chat", "api", "batch", "rag", "wide-ep")),
    concurrency=st.sampled_from((None, 1.0, 64.0, 600.0)),
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES)
def test_every_finding_is_consistent(config: ServeConfig) -> None:
    for finding in lint_cases.findings(LINTS, config):
        assert {knob.partition(".")[0] for knob in finding.to} <= FLAGS
        classes = {KNOBS[knob.partition(".")[0]].klass for knob in finding.to} - {"note"}
        assert finding.klass != "auto" or classes <= {"auto"}, finding
        _divides(config, finding)
        _has_cache(config, finding)
        share = finding.to.get("gpu_memory_utilization")
        if isinstance(share, float) and not _is_least(config, share):
            assert 0.8 <= share <= 0.92
        length = finding.to.get("max_model_len")
        assert length is None or (isinstance(length, int) and length >= 1024)


def _is_least(config: ServeConfig, share: float) -> bool:
    """Whether so low a share becomes no larger than the start needs: others may use the GPU."""
    given = config.setting.get("gpu_memory_utilization")
    fit = estimate_fit(config)
    return (
        isinstance(given, float) and given <= 0.5 and given < share and fit is not None and fit.fits is False
    )


def _divides(config: ServeConfig, finding: Finding) -> None:
    tp = finding.to.get("tensor_parallel_size")
    assert tp is None or (isinstance(tp, int) and not why_indivisible(config.model, tp)), finding


def _has_cache(config: ServeConfig, finding: Finding) -> None:
    """More sequences are proposed only if the cache is unknown or fits each of them."""
    seqs, present = finding.to.get("max_num_seqs"), config.setting.get("max_num_seqs")
    if not isinstance(seqs, int) or (isinstance(present, int) and seqs <= present) or present is None:
        return
    took = estimate_fit(apply_plan(config))
    assert took is None or took.kv_tokens >= seqs * 256 or config.setting.get("max_model_len") in ("auto", -1)
