"""Speculative decoding: the number of draft tokens, and pipelines that a draft head cannot run in."""

import json
from collections.abc import Iterator

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    is_older_than,
    json_entries,
    layout,
    speculation_method,
)
from flettner.vllm_facts.validity.refusal import InvalidSetting

_SPECULATIVE = "vllm/config/speculative.py: _verify_args"
COUNTED = frozenset({"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "medusa"})
"""Methods whose draft gives no number of tokens; MTP, DSpark and DFlash drafts may."""

FIRST_TRY = 3  # tokens: the number in most examples of vLLM's documentation
_NO_PIPELINE = frozenset(
    {
        "ernie4_5_moe",
        "exaone_moe",
        "glm4_moe",
        "hy_v3",
        "longcat_flash",
        "mimo",
        "pangu_ultra_moe",
        "qwen3_next",
        "step3p5",
        "step3p7",
    }
)
"""Models by `model_type` whose MTP class lacks SupportsPP in 0.32 (model_executor/models/*_mtp.py)."""

_PIPELINE_LATER = frozenset({"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "qwen3_5", "qwen3_5_moe"})
"""Models whose MTP class has SupportsPP in 0.32, not in 0.28 (vllm-project/vllm#46994)."""

_WITHOUT, _UNREAD = (0, 29), (0, 33)
"""The first releases of which it is not known that they refuse."""


def check_draft_tokens(config: ServeConfig) -> Iterator[InvalidSetting]:
    given = json_entries(config, "speculative_config")
    dotted = [knob for knob in config.setting if knob.startswith("speculative_config.")]
    method = str(given.get("method", "")).lower()
    if (
        method not in COUNTED
        or "num_speculative_tokens" in given
        or dotted
        or config.setting.get("spec_tokens")
    ):
        return
    yield InvalidSetting(
        why=f"speculative decoding by {method} needs num_speculative_tokens in speculative_config",
        source=f"{_SPECULATIVE}: 'num_speculative_tokens must be provided'",
        to={"speculative_config": json.dumps({**given, "num_speculative_tokens": FIRST_TRY})},
        expects=f"it starts; {FIRST_TRY} is a first value: measure the acceptance, and others around it",
    )


def check_mtp_pipeline(config: ServeConfig) -> Iterator[InvalidSetting]:
    """A draft head takes over the pipeline of its model, also if its class supports no pipeline."""
    pipeline, kind = layout(config).pp, config.model.model_type if config.model else ""
    if pipeline < 2 or "mtp" not in speculation_method(config):  # noqa: PLR2004 - one stage is no pipeline
        return
    supported = _UNREAD if kind in _NO_PIPELINE else _WITHOUT if kind in _PIPELINE_LATER else None
    if supported is None or not is_older_than(config, supported):
        return
    yield InvalidSetting(
        why=(
            f"the MTP draft of {config.model.name if config.model else 'the model'} does not run in "
            f"a pipeline of {pipeline}: speculative decoding or pipeline_parallel_size has to go"
        ),
        source="vllm/config/model.py: 'Pipeline parallelism is not supported for this model'; "
        "vllm-project/vllm#52069",
        to={"speculative_config": None},
        expects="it starts without speculative decoding; with tensor parallelism over all GPUs it could stay",
    )


CHECKS = (check_draft_tokens, check_mtp_pipeline)
