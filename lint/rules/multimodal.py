"""The memory and the tokens of a step that images and videos take: rule L1."""

import re
from collections.abc import Iterable

from flettner.vllm_facts.defaults import BIG_GIB
from flettner.vllm_facts.references import CONSERVING_MEMORY
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_batched_tokens,
    is_at_least,
    json_entries,
    text_of,
)
from flettner.vllm_facts.start_facts import LONGEST_LINE
from flettner.vllm_facts.values import Value

_PROFILED = re.compile(r"profiled with \d{1,6} video item")
_WAITING = re.compile(r"Waiting: [1-9]\d* reqs?.{0,200}?KV cache usage: (?P<usage>\d{1,3}(?:\.\d{1,3})?)%")
FULL = 90.0  # percent
LIMIT, BUDGET = "limit_mm_per_prompt", "max_num_batched_tokens"
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
    full = any(_PROFILED.search(line) for line in config.log) and any(map(_is_full, config.log))
    yield Finding(
        rule="L1",
        severity="warning" if full else "info",
        why=(
            f"{model.name} takes videos, and --limit-mm-per-prompt does not exclude them: the start computes "
            f"the largest video that fits --max-model-len, and keeps that memory free on {card.name}"
            + (", while requests wait for a full KV cache" if full else "")
        ),
        expects=(
            'if no request has a video, --limit-mm-per-prompt \'{"image": N, "video": 0}\' leaves the '
            "memory to the KV cache (25 GiB instead of 5 on 40 GB, with a model of 3B); --max-model-len "
            "limits the video, too"
        ),
        risks="requests with videos are refused",
    )


def _is_full(line: str) -> bool:
    count = _WAITING.search(line[:LONGEST_LINE])
    return count is not None and float(count["usage"]) >= FULL


_WHOLE_ITEMS = {"Gemma4ForConditionalGeneration": (282, 2496)}
"""Tokens of the largest image and of the largest video of models that read an item in one step only."""

_RAISED_SINCE = (0, 22)  # the default makes room for an item: vllm-project/vllm#43051


def _check_whole_items(config: ServeConfig) -> Iterable[Finding]:
    setting, model = config.setting, config.model
    image, video = _WHOLE_ITEMS.get(model.architecture if model else "", (0, 0))
    limits = {**json_entries(config, LIMIT), **_dotted_limits(config)}
    excluded = {name for name, most in limits.items() if most == 0}
    needed = 0 if "image" in excluded else image
    needed = needed if "video" in excluded else video
    budget, given = effective_batched_tokens(config), setting.get(BUDGET) is not None
    started = config.start is not None and config.start.passed_flags
    raised = not given and (not config.version or is_at_least(config, _RAISED_SINCE))
    if setting.get("language_model_only") is True or raised or started or not budget or budget >= needed:
        return
    yield Finding(
        rule="L1",
        klass="gated",
        severity="error",
        why=(
            f"{text_of(config, 'model')} reads an image or a video in one step, and the largest takes "
            f"{needed:,} tokens: with max_num_batched_tokens {budget:,}{'' if given else ' (the default)'} "
            "the server does not start"
        ),
        to={BUDGET: 1 << (needed - 1).bit_length()},
        expects="it starts; or with --limit-mm-per-prompt where no request has a video",
        risks="more memory for activations",
        evidence={"tokens_per_item": needed, BUDGET: budget},
    )


def _dotted_limits(config: ServeConfig) -> dict[str, Value]:
    """`--limit-mm-per-prompt.video 0`"""
    start = f"{LIMIT}."
    return {
        knob.removeprefix(start): value for knob, value in config.setting.items() if knob.startswith(start)
    }


LINTS = (
    DeploymentCheck(
        rules=("L1",),
        find=_check_whole_items,
        reports="a step that holds no whole image or video, for models that read one in a piece (Gemma 4)",
        source="vllm/v1/core/encoder_cache_manager.py: compute_mm_encoder_budget; vllm-project/vllm#42687",
        needs=Needs(facts=("model",)),
    ),
    DeploymentCheck(
        rules=("L1",),
        find=_check_video,
        reports="a start that keeps memory for videos, where --limit-mm-per-prompt does not exclude them",
        source=(f"vllm/multimodal/encoder_budget.py: get_modality_with_max_tokens; {CONSERVING_MEMORY}"),
        evidence_for="25.05 instead of 5.26 GiB of KV cache (Qwen2.5-VL-3B, vllm-project/vllm#25631)",
        needs=Needs(facts=("gpu", "model")),
    ),
)
