"""The API server: tools, logs, metrics."""

from collections.abc import Iterator

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entry
from flettner.vllm_facts.validity.refusal import ENGINE, SERVE, InvalidSetting, Without, is_off

WITHOUT = (
    Without(
        "mm_shm_cache_max_object_size_mb",
        lambda config: config.setting.get("mm_processor_cache_type") != "shm",
        "needs mm_processor_cache_type shm",
        "vllm/config/multimodal.py: mm_shm_cache_max_object_size_mb: 'should only be set when'",
    ),
    Without(
        "attention_backend",
        lambda config: json_entry(config, "attention_config", "backend") is not None,
        "and attention_config.backend exclude each other",
        f"{ENGINE}: 'attention_backend and attention_config.backend are mutually exclusive'",
    ),
    Without(
        "enable_log_outputs",
        is_off("enable_log_requests"),
        "needs enable_log_requests",
        f"{SERVE}: '--enable-log-outputs requires --enable-log-requests'",
        to=(("enable_log_requests", True),),
    ),
)


def check_tools(config: ServeConfig) -> Iterator[InvalidSetting]:
    if config.setting.get("enable_auto_tool_choice") is True and not config.setting.get("tool_call_parser"):
        yield InvalidSetting(
            knobs=("enable_auto_tool_choice",),
            why=(
                "enable_auto_tool_choice needs tool_call_parser, the one for the model's family: "
                "hermes, llama3_json, mistral, openai (gpt-oss) or another"
            ),
            source=f"{SERVE}: '--enable-auto-tool-choice requires --tool-call-parser'",
        )


def check_metrics(config: ServeConfig) -> Iterator[InvalidSetting]:
    given = config.setting
    if given.get("enable_per_request_metrics") is True and given.get("disable_log_stats") is True:
        yield InvalidSetting(
            knobs=("enable_per_request_metrics", "disable_log_stats"),
            why="enable_per_request_metrics is refused together with disable_log_stats",
            source=f"{SERVE}: '--enable-per-request-metrics requires engine statistics logging'",
            to={"disable_log_stats": None},
        )


CHECKS = (check_tools, check_metrics)
