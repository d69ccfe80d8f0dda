"""Flags with which the server starts and serves something else than they say."""

import json

import pytest

from flettner.lint.rules.serving import LINTS
from tests.support.lint_cases import case, findings


def test_a_parser_without_tool_choice_is_remarked() -> None:
    (one,) = findings(LINTS, case("vllm serve m --tool-call-parser hermes"))

    assert (one.severity, one.to) == ("info", {"enable_auto_tool_choice": True})
    for flags in ("--tool-call-parser hermes --enable-auto-tool-choice", "--tool-call-parser openai", ""):
        assert not findings(LINTS, case(f"vllm serve m {flags}"))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("Qwen/Qwen3-Reranker-8B", "Qwen3ForSequenceClassification"),
        ("/models/Qwen3-VL-Reranker-2B", "Qwen3VLForSequenceClassification"),
    ],
)
def test_a_reranker_with_its_own_files_needs_overrides(model: str, kind: str) -> None:
    (one,) = findings(LINTS, case(f"vllm serve {model}"))

    assert json.loads(str(one.to["hf_overrides"]))["architectures"] == [kind]
    assert not findings(LINTS, case(f"vllm serve {model} --hf-overrides '{{}}x'"))
    assert not findings(LINTS, case(f"vllm serve {model}-seq-cls"))


def test_a_config_from_elsewhere_loses_the_quantization() -> None:
    (one,) = findings(LINTS, case("vllm serve org/m-7B-AWQ --hf-config-path org/m-7B"))

    assert one.severity == "warning"
    for flags in ("org/m-7B --hf-config-path org/n-7B", "org/m-7B-AWQ", "a/m-AWQ --hf-config-path b/m-AWQ"):
        assert not findings(LINTS, case(f"vllm serve {flags}"))
