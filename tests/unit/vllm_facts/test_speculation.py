"""Speculative decoding that vLLM refuses."""

import json

import pytest

from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.validity.speculation import check_draft_tokens, check_mtp_pipeline
from tests.support.lint_cases import case

MTP = """--speculative-config '{"method":"mtp","num_speculative_tokens":3}'"""


@pytest.mark.parametrize("method", ["ngram", "eagle3", "draft_model"])
def test_a_method_without_own_number_needs_one(method: str) -> None:
    (refusal,) = check_draft_tokens(case(f"""vllm serve m --speculative-config '{{"method":"{method}"}}'"""))

    assert json.loads(str(refusal.to["speculative_config"]))["num_speculative_tokens"] > 0


@pytest.mark.parametrize(
    "flags",
    [
        MTP,
        """--speculative-config '{"method":"mtp"}'""",
        """--speculative-config '{"method":"suffix"}'""",
        """--speculative-config '{"method":"ngram"}' --speculative-config.num_speculative_tokens 3""",
        "",
    ],
)
def test_other_drafts_pass(flags: str) -> None:
    assert not list(check_draft_tokens(case(f"vllm serve m {flags}")))


@pytest.mark.parametrize(
    ("model", "version", "refused"),
    [
        ("zai-org/GLM-4.6", "0.32.0", True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.20.0", True),
        ("deepseek-ai/DeepSeek-V3.1", "0.28.0", True),
        ("deepseek-ai/DeepSeek-V3.1", "0.32.0", False),
        ("zai-org/GLM-4.6", "", False),
        ("zai-org/GLM-4.6", "0.33.0", False),
    ],
)
def test_a_draft_head_without_pipelines_is_refused(model: str, version: str, *, refused: bool) -> None:
    facts = find_model(model)

    piped = case(f"vllm serve {model} -pp 2 {MTP}", version=version, model=facts)
    assert bool(list(check_mtp_pipeline(piped))) == refused
    assert not list(check_mtp_pipeline(case(f"vllm serve {model} {MTP}", version=version, model=facts)))
