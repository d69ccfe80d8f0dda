"""The memory that a start takes for images and videos: rule L1."""

from collections.abc import Iterable

from flettner.vllm_facts.defaults import BIG_GIB
from flettner.vllm_facts.references import CONSERVING_MEMORY
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, json_entries

LIMIT = "limit_mm_per_prompt"
WITH_VIDEO = frozenset(
    {
        "Ernie4_5_VLMoeForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "InternS1ForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5OmniModel",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Architectures whose `get_supported_mm_limits` names videos."""


def _check_video(config: ServeConfig) -> Iterable[Finding]:
    """A remark before an OOM: the start computes the largest item, which is a video."""
    setting, model, card = config.setting, config.model, config.card
    if model is None or model.architecture not in WITH_VIDEO or card is None or card.memory_gib is None:
        return
    text_only = setting.get("language_model_only") is True or setting.get("skip_mm_profiling") is True
    if (
        text_only
        or card.memory_gib >= BIG_GIB
        or "video" in json_entries(config, LIMIT)
        or f"{LIMIT}.video" in setting
    ):
        return
    yield Finding(
        rule="L1",
        why=(
            f"{model.name} takes videos, and --limit-mm-per-prompt does not exclude them: the start computes "
            f"the largest video that fits --max-model-len, and keeps that memory free on {card.name}"
        ),
        expects=(
            'if no request has a video, --limit-mm-per-prompt \'{"image": N, "video": 0}\' leaves the '
            "memory to the KV cache; --max-model-len limits the video, too"
        ),
        risks="requests with videos are refused",
    )


LINTS = (
    DeploymentCheck(
        rules=("L1",),
        find=_check_video,
        reports="a start that keeps memory for videos, where --limit-mm-per-prompt does not exclude them",
        source=(f"vllm/multimodal/encoder_budget.py: get_modality_with_max_tokens; {CONSERVING_MEMORY}"),
        needs=Needs(facts=("gpu", "model")),
    ),
)
