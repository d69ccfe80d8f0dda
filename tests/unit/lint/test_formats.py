"""V1: weight formats that this version of vLLM does not support."""

import pytest

from flettner.lint.rules.formats import LINTS
from tests.support.lint_cases import LLAMA_8B, QWEN_7B_AWQ, case, dense, findings, rules

AWQ = dense("org/m-AWQ", 7, quantization="awq")


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("vllm serve ./tinyllama.Q4_K_M.gguf", "vllm-gguf-plugin"),
        ("vllm serve unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "vllm-gguf-plugin"),
        ("vllm serve m --quantization bitsandbytes", "vllm-bnb-plugin"),
        ("vllm serve m --load-format bitsandbytes", "vllm-bnb-plugin"),
        ("vllm serve unsloth/tinyllama-bnb-4bit", "vllm-bnb-plugin"),
    ],
)
def test_names_the_plugin_of_a_moved_format(command: str, package: str) -> None:
    (found,) = findings(LINTS, case(command))

    assert found.severity == "warning"
    assert package in found.why
    assert rules(findings(LINTS, case(command, version="0.23.0"))) == ["E2"]


def test_refuses_an_unknown_method() -> None:
    (found,) = findings(LINTS, case("vllm serve m --quantization int4"))

    assert (found.severity, found.to) == ("error", {"quantization": None})
    assert not findings(LINTS, case("vllm serve m --quantization int4", version="0.14.0"))


@pytest.mark.parametrize("method", ["fp8", "gptq", "gptq_marlin"])
def test_refuses_a_method_that_differs_from_the_checkpoint(method: str) -> None:
    (found,) = findings(LINTS, case(f"vllm serve m --quantization {method}", model=AWQ))

    assert found.to == {"quantization": None}


@pytest.mark.parametrize("method", ["awq", "awq_marlin", "moe_wna16", "compressed-tensors"])
def test_keeps_the_method_of_the_checkpoint(method: str) -> None:
    assert not findings(LINTS, case(f"vllm serve m --quantization {method}", model=AWQ))
    assert not findings(LINTS, case("vllm serve m", model=QWEN_7B_AWQ))


def test_refuses_awq_for_a_16_bit_checkpoint() -> None:
    (found,) = findings(LINTS, case("vllm serve org/m --quantization awq", model=LLAMA_8B))

    assert (found.severity, found.to) == ("warning", {"quantization": None})
    assert not findings(LINTS, case("vllm serve /models/m --quantization awq", model=LLAMA_8B))
    assert not findings(LINTS, case("vllm serve org/m --quantization fp8", model=LLAMA_8B))
