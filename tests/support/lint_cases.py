"""Cases for the lints, written as the command lines they come from."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from flettner.lint.fixes import Fixes
from flettner.vllm_facts.flag_parser import edit_flags, parse_address, parse_setting
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Finding, GpuModel, LintRule, Model, ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.validity.refusal import InvalidSetting
from tests.support.sources import faults

T4 = GpuModel(name="T4", capability=(7, 5), memory_gib=15.0, link="pcie")
RTX_5070 = GpuModel(name="RTX 5070", capability=(12, 0), memory_gib=11.94, link="pcie")
A10 = GpuModel(name="A10", capability=(8, 6), memory_gib=22.49, link="pcie")
L40S = GpuModel(name="L40S", capability=(8, 9), memory_gib=44.99, link="pcie")
A100_40 = GpuModel(name="A100 40GB", capability=(8, 0), memory_gib=40.0, link="nvlink")
A100 = GpuModel(name="A100 80GB", capability=(8, 0), memory_gib=80.0, link="nvlink")
H100 = GpuModel(name="H100", capability=(9, 0), memory_gib=79.65, link="nvlink")
H200 = GpuModel(name="H200", capability=(9, 0), memory_gib=140.4, link="nvlink")
GB200 = GpuModel(name="GB200", capability=(10, 0), memory_gib=185.03, link="nvlink")
MI300X = GpuModel(name="MI300X", memory_gib=191.98)
V100 = GpuModel(name="V100", capability=(7, 0), memory_gib=32.0)
L4 = GpuModel(name="L4", capability=(8, 9), memory_gib=22.49, link="pcie")
A100_PCIE = GpuModel(name="A100 80GB", capability=(8, 0), memory_gib=80.0, link="pcie")
GB10 = GpuModel(name="GB10", capability=(12, 1))
RTX_4090 = find_gpu("RTX 4090")


def dense(name: str, billions: float, *, layers: int = 32, **facts: Any) -> Model:  # noqa: ANN401 - the fields of Model
    """A transformer of grouped-query attention: 32 heads, 8 of keys and values, 128 wide."""
    fields: dict[str, Any] = {
        "parameters": billions * 1e9,
        "active_parameters": billions * 1e9,
        "layers": layers,
        "hidden_size": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "experts": 0,
        "max_len": 32768,
        "weight_bytes": 2.0,
        "architecture": "LlamaForCausalLM",
    }
    return Model(name=name, **(fields | facts))


QWEN_2B = dense(
    "Qwen/Qwen3-VL-2B-Instruct", 2.1, layers=28, hidden_size=2048, heads=16, kv_heads=8, max_len=262144
)
DENSE_7B = dense("m", 7)
PHI = dense("phi", 4, head_dim=96)
WIDE_14B = dense("x", 14.8, heads=64, hidden_size=8192)
QWEN_8B = dense("Qwen/Qwen3-8B", 8.2, max_len=40960)
BLOCKS_4B = dense("m", 4, intermediate=9728, quantization="fp8", weight_block=(128, 128))
QWEN_7B = dense("Qwen/Qwen2.5-7B-Instruct", 7.6, layers=28, hidden_size=3584, heads=28, kv_heads=4)
QWEN_14B = dense("Qwen/Qwen2.5-14B-Instruct", 14.8, layers=48, hidden_size=5120, heads=40)
AWQ_7B = dense("org/m-AWQ", 7, quantization="awq")
MINIMAX = dense("MiniMaxAI/MiniMax-M2.5", 230)
GLM = dense("zai-org/GLM-4.7-FP8", 355)
GEMMA_1B, GEMMA_12B = find_model("google/gemma-3-1b-it"), find_model("google/gemma-3-12b-it")
RERANKER = find_model("BAAI/bge-reranker-v2-m3")
GEMMA_4 = find_model("google/gemma-4-26B-A4B-it")
GPT_OSS = find_model("openai/gpt-oss-20b")
QWEN_VL = find_model("Qwen/Qwen2.5-VL-7B-Instruct")
LLAMA_8B = dense("meta-llama/Llama-3.1-8B-Instruct", 8.03, max_len=131072)
LLAMA_8B_AWQ = dense("casperhansen/llama-3-8b-instruct-awq", 8.03, weight_bytes=0.7, max_len=8192)
LLAMA_70B = dense(
    "meta-llama/Llama-3.3-70B-Instruct", 70.6, layers=80, hidden_size=8192, heads=64, max_len=131072
)
QWEN_7B_AWQ = dense(
    "Qwen/Qwen2.5-7B-Instruct-AWQ", 7.6, layers=28, hidden_size=3584, heads=28, kv_heads=4, weight_bytes=0.73
)
MAMBA_9B = dense(
    "RedHatAI/NVIDIA-Nemotron-Nano-9B-v2-quantized.w4a16",
    8.9,
    layers=56,
    hidden_size=4480,
    heads=40,
    hybrid=True,
    attention_layers=4,
    weight_bytes=0.7,
    max_len=131072,
    architecture="NemotronHForCausalLM",
)
MIXTRAL = dense(
    "mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, active_parameters=12.9e9, experts=8, active_experts=2
)
MAVERICK = dense(
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    401.6,
    active_parameters=17e9,
    layers=48,
    hidden_size=5120,
    heads=40,
    experts=128,
    active_experts=1,
    weight_bytes=1.0,
    architecture="Llama4ForConditionalGeneration",
)
DEEPSEEK_R1 = dense(
    "deepseek-ai/DeepSeek-R1",
    671.0,
    active_parameters=37e9,
    layers=61,
    hidden_size=7168,
    heads=128,
    kv_heads=128,
    head_dim=192,
    experts=256,
    active_experts=8,
    mla=True,
    latent_dim=576,
    max_len=163840,
    weight_bytes=1.0,
    architecture="DeepseekV3ForCausalLM",
)
DEEPSEEK_V32 = replace(DEEPSEEK_R1, name="deepseek-ai/DeepSeek-V3.2-Exp")
QWEN_235B = dense(
    "Qwen/Qwen3-235B-A22B",
    235.0,
    active_parameters=22e9,
    layers=94,
    heads=64,
    kv_heads=4,
    experts=128,
    active_experts=8,
    max_len=40960,
)
QWEN_235B_FP8 = replace(QWEN_235B, quantization="fp8", weight_block=(128, 128), moe_intermediate=1536)
QWEN_397B = replace(QWEN_235B, name="Qwen/Qwen3.5-397B-A17B", experts=512, active_experts=10)


def case(command: str, *, env: str = "", version: str = "0.32.0", **facts: Any) -> ServeConfig:  # noqa: ANN401 - its fields
    """The case of a command line as a shell reads it; `env` as "NAME=value NAME=value"."""
    argv = shlex.split(command)
    setting = parse_setting(argv)
    if "--host" in command:
        setting["host"] = parse_address(argv).host
    if "--api-key" in command:
        setting["api_key"] = "***"
    pairs = dict(word.split("=", 1) for word in env.split())
    return ServeConfig(setting=setting, env=pairs, version=version, **facts)


def findings(lints: Iterable[LintRule], config: ServeConfig) -> tuple[Finding, ...]:
    """All that the lints say, each held to what a finding must be."""
    reported: list[Finding] = []
    for lint in lints:
        for finding in lint.check(config):
            assert finding.rule in lint.rules
            assert finding.why and finding.expects, finding.rule  # noqa: PT018 - both are texts
            assert not faults(finding.source), finding
            assert finding.klass != "note" or not (finding.to or finding.env), finding
            assert all(
                config.setting.get(knob) != value or value is None for knob, value in finding.to.items()
            )
            reported.append(finding)
    return tuple(reported)


def improved(command: str, reported: Iterable[Finding | InvalidSetting | Fixes]) -> str:
    """The command line with what the findings ask for, to be read by a person."""
    argv = shlex.split(command)
    for finding in reported:
        argv = edit_flags(argv, finding.to)
    return shlex.join(argv)
