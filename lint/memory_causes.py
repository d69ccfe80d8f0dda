"""What rows of known errors ask, name or change where memory beside the weights and the KV cache ran out."""

import re
from collections.abc import Mapping

from flettner.vllm_facts.releases.history import has_variable
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    effective_batched_tokens,
    is_at_least,
    json_entries,
    number_of,
    text_of,
)
from flettner.vllm_facts.sizing.limits import SHARE, TOKENS, shares_memory
from flettner.vllm_facts.start_facts import DRIVER_OUT_OF_MEMORY, LONGEST_LINE, OUT_OF_MEMORY, find_last
from flettner.vllm_facts.values import Knob, Value

UNPINNED = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
LOGITS_MB = "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"
_PINNED_MEMORY = "VLLM_WSL2_ENABLE_PIN_MEMORY"
_OLD_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_WEIGHTS, _CACHE, _TRANSFER = "cpu_offload_gb", "kv_offloading_size", "kv_transfer_config"
_GIB = 2.0**30
_FEW_TOKENS, _LEAST_TOKENS = 8192, 2048
_FEW_MB = 64
_INDEXER = re.compile(r"sparse_attn_indexer\.py\"|(?:fp8_fp4|fp8)_mqa_logits\(")
_DECODE = re.compile(r"sparse_decode_fwd\(")
_OFFLOADED = r"Total CPU offloaded parameters: (\d{1,6}(?:\.\d{1,3})?)"  # offloader/uva.py
_TRACEBACK = 60  # lines above the error
_FAST = "fastsafetensors"
_IN_FILE_SINCE = (0, 28)  # vllm-project/vllm#50094, of July 2026


def describe_host_memory(config: ServeConfig) -> str:
    """What of the command takes memory of the host; "" if nothing is known to."""
    weights, cache = number_of(config, _WEIGHTS), offloaded_gib(config)
    logged = find_last(_OFFLOADED, config.log)
    loads_whole = text_of(config, "load_format") == _FAST
    parts = (
        f"--cpu-offload-gb {weights:g} (pinned, it takes up to twice as much, as blocks are rounded up to a "
        f"power of two; with {UNPINNED}=1 no more than that, and slower)"
        if weights
        else f"the weights that each process keeps there (GiB by the log: {logged[1]})"
        if logged
        else "",
        f"{cache:g} GiB of KV cache on the host" if cache else "",
        f"--load-format {_FAST} (it fills the host's memory with some models: auto or instanttensor do not)"
        if loads_whole
        else "",
        f"the GPU, which shares this memory ({SHARE})" if shares_memory(config) else "",
    )
    return ", ".join(filter(None, parts))


def offloaded_gib(config: ServeConfig) -> float | None:
    """The KV cache that vLLM itself keeps in the host's memory, all processes together."""
    if size := number_of(config, _CACHE):
        return size
    extra = json_entries(config, _TRANSFER).get("kv_connector_extra_config")
    size = extra.get("cpu_bytes_to_use") if isinstance(extra, dict) else None
    return round(size / _GIB, 1) if isinstance(size, int | float) else None


def shared_tier_gib(config: ServeConfig) -> float | None:
    """The KV cache that vLLM keeps in a file of /dev/shm: that of its tiers, later each that it offloads."""
    given = json_entries(config, _TRANSFER)
    extra = given.get("kv_connector_extra_config", {})
    tiers = isinstance(extra, dict) and extra.get("spec_name") == "TieringOffloadingSpec"
    own = text_of(config, "kv_offloading_backend") in {"", "native"} and not given
    later = (own or given.get("kv_connector") == "OffloadingConnector") and is_at_least(
        config, _IN_FILE_SINCE
    )
    return offloaded_gib(config) if tiers or later else None


def fills_attention_workspace(config: ServeConfig) -> bool:
    """Whether memory ran out in what sparse attention takes for the tokens of a step."""
    return fills_decode_workspace(config) or fills_indexer(config)


def fills_decode_workspace(config: ServeConfig) -> bool:
    return _ran_out_in(_DECODE, config)


def fills_indexer(config: ServeConfig) -> bool:
    return _ran_out_in(_INDEXER, config)


def _ran_out_in(code: re.Pattern[str], config: ServeConfig) -> bool:
    """Whether the code is in the traceback of the last error of memory: other lines list all operations."""
    if config.start is None or not config.start.ran_out:
        return False
    failed = re.compile(rf"{OUT_OF_MEMORY}|{DRIVER_OUT_OF_MEMORY}")
    lines = [line[:LONGEST_LINE] for line in config.log]
    last = next((at for at in range(len(lines) - 1, -1, -1) if failed.search(lines[at])), 0)
    return any(code.search(line) for line in lines[max(0, last - _TRACEBACK) : last + 1])


def shrink_step(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """Fewer tokens in a step: what was measured, or half of the present."""
    tokens = effective_batched_tokens(config)
    if tokens is None or tokens <= _LEAST_TOKENS:
        return {}
    return {TOKENS: min(_FEW_TOKENS, max(_LEAST_TOKENS, 1 << (tokens // 2).bit_length() - 1))}


def shrink_indexer(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    given = config.env.get(LOGITS_MB, "")
    small = given.isdecimal() and int(given) <= _FEW_MB
    return {} if small or has_variable(LOGITS_MB, config.version) is False else {LOGITS_MB: str(_FEW_MB)}


def pin_under_windows(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """Pinned memory, where the release has the choice; else the model runner that does without."""
    has_choice = has_variable(_PINNED_MEMORY, config.version) is not False
    return {_PINNED_MEMORY: "1"} if has_choice else {_OLD_RUNNER: "0"}


def load_file_by_file(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The loader of vLLM itself, if memory ran out while another one read the weights."""
    failed = config.start is not None and not config.start.serves
    return {"load_format": None} if failed and text_of(config, "load_format") == _FAST else {}


def has_no_weights(config: ServeConfig) -> bool:
    """Whether no line of the log is of a server that has read weights."""
    return config.start is None or not (config.start.loaded or config.start.read_weights)


FUNCTIONS = (
    has_no_weights,
    load_file_by_file,
    fills_decode_workspace,
    fills_indexer,
    shrink_step,
    shrink_indexer,
    pin_under_windows,
)
"""Those that a row may name."""
