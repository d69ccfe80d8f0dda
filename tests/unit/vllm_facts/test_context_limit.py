"""The context limit of a model, compared with ModelConfig of vLLM 0.32 for a small Qwen3."""

import pytest

from flettner.vllm_facts.models.config_json import read_config
from flettner.vllm_facts.models.context_limit import find_exceeded_context
from tests.support.lint_cases import case, dense

QWEN3 = dense("Qwen/Qwen3-8B", 8.2, max_len=40960)
YARN = """"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}"""
LONG = f"vllm serve m --max-model-len 131072 --hf-overrides '{{{YARN}}}'"
DOTTED = "--hf-overrides.rope_scaling.rope_type yarn --hf-overrides.rope_scaling.factor 4.0"


@pytest.mark.parametrize(
    "flags",
    [
        "--max-model-len 40960",
        "--max-model-len auto",
        "",
        f"""--max-model-len 131072 --hf-overrides '{{{YARN}, "max_position_embeddings": 131072}}'""",
        """--max-model-len 81920 --hf-overrides '{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'""",
        """--max-model-len 81920 --hf-overrides '{"max_position_embeddings": 81920}'""",
        """--max-model-len 81920 --hf-overrides '{"model_max_length": 81920}'""",
        "--max-model-len 81920 --hf-config-path /elsewhere",
    ],
)
def test_an_accepted_length_is_not_reported(flags: str) -> None:
    assert find_exceeded_context(case(f"vllm serve m {flags}", model=QWEN3)) is None


def test_one_token_above_the_limit_is_too_long() -> None:
    exceeded = find_exceeded_context(case("vllm serve m --max-model-len 40961", model=QWEN3))

    assert exceeded is not None
    assert (exceeded.requested, exceeded.supported, exceeded.to) == (40961, 40960, {"max_model_len": 40960})


def test_yarn_alone_does_not_lengthen_and_is_completed() -> None:
    exceeded = find_exceeded_context(case(LONG, model=QWEN3))

    assert exceeded is not None
    assert exceeded.yarn
    assert '"max_position_embeddings": 131072' in str(exceeded.to["hf_overrides"])


def test_dotted_yarn_is_completed_by_another_part() -> None:
    original = "--hf-overrides.rope_scaling.original_max_position_embeddings 32768"

    exceeded = find_exceeded_context(
        case(f"vllm serve m --max-model-len 131072 {DOTTED} {original}", model=QWEN3)
    )

    assert exceeded is not None
    assert exceeded.to == {"hf_overrides.max_position_embeddings": 131072}


def test_yarn_of_older_versions_is_not_checked() -> None:
    assert find_exceeded_context(case(LONG, model=QWEN3, version="0.14.0")) is None


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "dynamic", "factor": 2.0}, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"rope_type": "default"}, 4096),
    ],
)
def test_applies_the_scaling_of_the_config_where_vllm_multiplies(
    scaling: dict[str, object], length: int
) -> None:
    config = {"model_type": "llama", "max_position_embeddings": 4096, "rope_scaling": scaling}

    assert read_config(config, "m").max_len == length
