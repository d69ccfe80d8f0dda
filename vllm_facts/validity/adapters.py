"""LoRA adapters, offloading to the host's memory, and sleep mode."""

from collections.abc import Iterator

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entry, number_of
from flettner.vllm_facts.validity.refusal import VLLM, InvalidSetting

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""MaxLoRARanks; no other value of max_lora_rank is accepted."""

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_OFFLOAD = "vllm/config/offload.py: validate_offload_config"


def check_rank(config: ServeConfig) -> Iterator[InvalidSetting]:
    """The rank of adapters is one of a few sizes; the next larger size holds every smaller adapter."""
    rank = positive_int(config.setting, "max_lora_rank")
    if rank is None or rank in RANKS:
        return
    larger = next((size for size in RANKS if size >= rank), None)
    yield InvalidSetting(
        why=f"max_lora_rank {rank} is none of {', '.join(map(str, RANKS))}",
        source=f"vllm/config/lora.py: MaxLoRARanks (the parser says: invalid choice: {rank})",
        to={"max_lora_rank": larger} if larger else {},
        expects="" if larger else f"adapters of at most rank {RANKS[-1]} are served",
    )


def check_prefetch(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Weights offloaded by prefetching are fetched at least one layer ahead, from groups of layers."""
    group, step = number_of(config, "offload_group_size"), number_of(config, "offload_prefetch_step")
    if config.setting.get("offload_backend") == "prefetch" and not group:
        yield InvalidSetting(
            why="offload_backend prefetch needs offload_group_size, which is 0",
            source=f"{_OFFLOAD}: 'offload_num_in_group must be <= offload_group_size'",
            to={"offload_backend": None},
        )
    elif group and step == 0:
        yield InvalidSetting(
            why="offload_prefetch_step 0 is refused with offload_group_size",
            source=f"{_OFFLOAD}: 'offload_prefetch_step must be >= 1 when prefetch offloading is enabled'",
            to={"offload_prefetch_step": None},
        )


def check_allocator(config: ServeConfig) -> Iterator[InvalidSetting]:
    """A KV connector registers memory that expandable segments would remap."""
    if "expandable_segments:True" not in config.env.get(ALLOCATOR, "") or not json_entry(
        config, "kv_transfer_config", "kv_connector"
    ):
        return
    if (
        config.setting.get("enable_sleep_mode") is True
        or config.setting.get("enable_cumem_allocator") is True
    ):
        return
    yield InvalidSetting(
        why=f"a KV connector is refused with {ALLOCATOR}=expandable_segments:True",
        source=(
            f"{VLLM}: _verify_kv_transfer_compat: 'is incompatible with "
            f"{ALLOCATOR}=expandable_segments:True unless enable_cumem_allocator is also enabled'"
        ),
        env={ALLOCATOR: None},
    )


CHECKS = (check_rank, check_prefetch, check_allocator)
