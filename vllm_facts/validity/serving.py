"""The API server: tools, logs, metrics."""

from collections.abc import Iterator

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entry
from flettner.vllm_facts.validity.refusal import SERVE, InvalidSetting


def has_no_shared_cache(config: ServeConfig) -> bool:
    return config.setting.get("mm_processor_cache_type") != "shm"


def names_backend_twice(config: ServeConfig) -> bool:
    return json_entry(config, "attention_config", "backend") is not None


CONDITIONS = (has_no_shared_cache, names_backend_twice)
"""Of rows in refusals.toml."""


def check_tools(config: ServeConfig) -> Iterator[InvalidSetting]:
    if config.setting.get("enable_auto_tool_choice") is True and not config.setting.get("tool_call_parser"):
        yield InvalidSetting(
            why=(
                "enable_auto_tool_choice needs tool_call_parser, the parser of the model's family: "
                "hermes, llama3_json, mistral, openai (gpt-oss) or another"
            ),
            source=f"{SERVE}: '--enable-auto-tool-choice requires --tool-call-parser'",
        )


def check_metrics(config: ServeConfig) -> Iterator[InvalidSetting]:
    given = config.setting
    if given.get("enable_per_request_metrics") is True and given.get("disable_log_stats") is True:
        yield InvalidSetting(
            why="enable_per_request_metrics is refused together with disable_log_stats",
            source=f"{SERVE}: '--enable-per-request-metrics requires engine statistics logging'",
            to={"disable_log_stats": None},
        )


CHECKS = (check_tools, check_metrics)
