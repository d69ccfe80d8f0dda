"""From the flags of a server to the limits of its scheduler."""

import re
from collections.abc import Mapping
from dataclasses import replace

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.errors import PredictionInputError
from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    effective_batched_tokens,
    effective_seqs,
    is_pooling,
    layout,
    number_of,
    speculation_method,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, longest_request
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.values import Knob, Value

BLOCK_SIZE = 16
ASYNC_SINCE = (0, 14)
_ASYNC = re.compile(r"Asynchronous scheduling is (enabled|disabled)")
SCHEDULING = frozenset(
    {
        *("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens"),
        *(
            "long_prefill_token_threshold",
            "long_prefill_token_threshold_adaptive",
            "max_num_partial_prefills",
        ),
        *("max_long_partial_prefills", "watermark", "scheduler_reserve_full_isl", "enable_chunked_prefill"),
        *("enable_prefix_caching", "max_num_queued_reqs", "max_num_queued_tokens", "max_model_len"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "api_server_count"),
        *("enable_logging_iteration_details", "disable_log_stats", "stream_interval", "served_model_name"),
        *("host", "port", "uvicorn_log_level", "enable_log_requests", "disable_uvicorn_access_log"),
    }
)
"""Flags that decide what a step computes, or nothing about steps, and not how long the same step takes."""


def with_changes(config: ServeConfig, changes: Mapping[Knob, Value]) -> ServeConfig:
    """The same server with other flags; None removes one."""
    setting = {**config.setting, **changes}
    return replace(config, setting={knob: value for knob, value in setting.items() if value is not None})


def one_engine(config: ServeConfig) -> ServeConfig:
    """One engine of a data-parallel server, with the flags that each of them has."""
    return with_changes(config, {"data_parallel_size": None})


def limits_of(config: ServeConfig, *, kv_tokens: int | None = None) -> EngineLimits:
    """`kv_tokens`: the measured size of the KV cache; else estimated from GPU and model.

    Raises PredictionInputError if a fact is missing or a flag is not modelled.
    """
    _refuse_unmodelled(config)
    tokens, seqs = effective_batched_tokens(config), effective_seqs(config)
    if tokens is None or seqs is None:
        unset = ("max_num_seqs",) * (seqs is None) + ("max_num_batched_tokens",) * (tokens is None)
        raise PredictionInputError(
            f"vLLM's defaults depend on the GPU, which is unknown: set {' and '.join(unset)}, or name the "
            "GPU (the option --gpu; in the daemon, a sensor of GPUs)"
        )
    setting, block = config.setting, positive_int(config.setting, "block_size") or BLOCK_SIZE
    return EngineLimits(
        kv_blocks=max(1, _kv_tokens(config, kv_tokens) // block),
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_num_active_seqs=positive_int(setting, "max_num_active_seqs"),
        max_num_scheduled_tokens=positive_int(setting, "max_num_scheduled_tokens"),
        long_prefill_token_threshold=positive_int(setting, "long_prefill_token_threshold") or 0,
        long_prefill_token_threshold_adaptive=setting.get("long_prefill_token_threshold_adaptive") is True,
        watermark=number_of(config, "watermark") or 0.0,
        scheduler_reserve_full_isl=setting.get("scheduler_reserve_full_isl") is not False,
        enable_chunked_prefill=setting.get("enable_chunked_prefill") is not False,
        enable_prefix_caching=setting.get("enable_prefix_caching") is not False,
        max_num_queued_reqs=positive_int(setting, "max_num_queued_reqs"),
        max_num_queued_tokens=positive_int(setting, "max_num_queued_tokens"),
        max_model_len=longest_request(config),
        async_scheduling=setting.get("async_scheduling") is True,
    )


def plans_ahead(config: ServeConfig) -> bool:
    """Whether the next step is planned while one runs: vLLM's default since 0.14, except on a CPU and with
    pipeline parallelism."""
    if (told := is_told_to_plan_ahead(config)) is not None:
        return told
    release = release_of(config.version)
    is_default = config.card is not None and layout(config).pp == 1
    return is_default and (release is None or release >= ASYNC_SINCE)


def is_told_to_plan_ahead(config: ServeConfig) -> bool | None:
    """The same as its flag or its log says; None: neither does."""
    if (given := config.setting.get("async_scheduling")) is not None:
        return given is True
    logged = [match[1] for line in config.log if (match := _ASYNC.search(line[:4000]))]
    return logged[-1] == "enabled" if logged else None


def veto(config: ServeConfig, limits: EngineLimits, present: ServeConfig | None = None) -> str:
    """Why this setting must not be tried; empty if nothing speaks against it.

    `present`: a setting that a server runs with, which refutes what would speak against it too.
    """
    refuted = {finding.why for finding in find_problems(present)} if present else set()
    problem = next((finding for finding in find_problems(config) if finding.why not in refuted), None)
    if problem is not None:
        return problem.why
    fit = None if present and _does_not_fit(present) else estimate_fit(config)
    if fit is not None and fit.fits is False:
        return fit.why
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        return f"max_num_seqs {limits.max_num_seqs} is above max_num_batched_tokens"
    if limits.max_model_len is not None and limits.kv_tokens < limits.max_model_len:
        return f"the KV cache of {limits.kv_tokens} tokens does not hold a request of {limits.max_model_len}"
    return ""


def _does_not_fit(config: ServeConfig) -> bool:
    fit = estimate_fit(config)
    return fit is not None and fit.fits is False


def _kv_tokens(config: ServeConfig, measured: int | None) -> int:
    blocks = positive_int(config.setting, "num_gpu_blocks_override")
    if measured is not None:
        return measured
    if blocks is not None:
        return blocks * (positive_int(config.setting, "block_size") or BLOCK_SIZE)
    fit = estimate_fit(config)
    if fit is None:
        raise PredictionInputError(
            "the size of the KV cache is unknown: give --kv-tokens (vLLM logs `GPU KV cache size`), or --gpu "
            "and a known model or --model-config"
        )
    if fit.fits is False or fit.kv_tokens < 1:
        raise PredictionInputError(f"vLLM would not start: {fit.why}")
    return fit.kv_tokens


def _refuse_unmodelled(config: ServeConfig) -> None:
    reason = (
        "speculative decoding"
        if speculation_method(config) or config.setting.get("speculative_config")
        else "a pooling model"
        if is_pooling(config)
        else "data_parallel_size above 1; predict one engine with its share of the requests"
        if layout(config).dp > 1
        else "scheduling_policy priority"
        if config.setting.get("scheduling_policy") == "priority"
        else ""
    )
    if reason:
        raise PredictionInputError(f"not modelled: {reason}")
