"""L1: the memory that a start takes for the largest video."""

import pytest

from flettner.lint.rules.multimodal import LINTS
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import GpuModel, Model
from tests.support.lint_cases import A10, H100, LLAMA_8B, case, findings

QWEN_VL = find_model("Qwen/Qwen2.5-VL-7B-Instruct")


@pytest.mark.parametrize(
    ("flags", "model", "card", "remarks"),
    [
        pytest.param("", QWEN_VL, A10, ["L1"], id="videos on a small GPU"),
        pytest.param(
            """--limit-mm-per-prompt '{"image":4}'""", QWEN_VL, A10, ["L1"], id="only images limited"
        ),
        pytest.param("""--limit-mm-per-prompt '{"video":0}'""", QWEN_VL, A10, [], id="without videos"),
        pytest.param("--limit-mm-per-prompt.video 0", QWEN_VL, A10, [], id="without videos, dotted"),
        pytest.param("--skip-mm-profiling", QWEN_VL, A10, [], id="not computed at the start"),
        pytest.param("", QWEN_VL, H100, [], id="a large GPU"),
        pytest.param("", LLAMA_8B, A10, [], id="text only"),
    ],
)
def test_a_model_with_videos_on_a_small_gpu_is_remarked(
    flags: str, model: Model, card: GpuModel, remarks: list[str]
) -> None:
    found = findings(LINTS, case(f"vllm serve m {flags}", model=model, card=card))

    assert [(one.rule, one.severity, one.to) for one in found] == [(rule, "info", {}) for rule in remarks]
