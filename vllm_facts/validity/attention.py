"""A forced attention backend against the model. Rule H1 checks it against the GPU alone."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache

from flettner.vllm_facts.fact_tables import FOLDER
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.dtypes import dtype_in_force
from flettner.vllm_facts.sizing.effective_flags import (
    is_at_least,
    is_older_than,
    json_entry,
    remove_json_entry,
    text_of,
)
from flettner.vllm_facts.validity.refusal import InvalidSetting

READ = (0, 32)  # the version whose attention backends were read
HOPPER = (9, 0)
ONE_ENGINE = (0, 11)  # from here on only the backends of the V1 engine are left
FLASHINFER_HEADS = frozenset({64, 128, 256, 512})
HEADS_ONLY = frozenset({"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"})
"""Backends of heads; latent attention has its own, whose names contain MLA."""


def forced_backend(config: ServeConfig) -> str:
    """The attention backend in the flags, in capitals; "" if vLLM chooses it."""
    given = text_of(config, "attention_backend") or str(
        json_entry(config, "attention_config", "backend") or ""
    )
    return "" if given.lower() == "auto" else given.upper()


def check_backend(config: ServeConfig) -> Iterator[InvalidSetting]:
    forced, model = forced_backend(config), config.model
    if not forced or model is None or not is_at_least(config, READ):
        return
    if not (reason := _why_invalid(config, model, forced)):
        return
    by_flag = bool(text_of(config, "attention_backend"))
    yield InvalidSetting(
        why=f"attention backend {forced} is forced, yet {model.name} {reason[0]}",
        source=(
            "vllm/v1/attention/backend.py: validate_configuration: 'is not valid for this "
            f"configuration', '{reason[1]}'"
        ),
        to={"attention_backend": None}
        if by_flag
        else remove_json_entry(config, "attention_config", "backend"),
        expects="vLLM chooses a backend for this model",
    )


def check_block_size(config: ServeConfig) -> Iterator[InvalidSetting]:
    """A block size that no attention backend of an NVIDIA GPU reads, or not the forced one."""
    size, card = config.setting.get("block_size"), config.card
    if type(size) is not int or size <= 0 or card is None or card.capability is None:
        return
    forced, sizes = forced_backend(config), least_block_sizes()
    least = sizes.get(forced, 0) if forced else min(sizes.values())
    if not least or size % least == 0 or is_older_than(config, ONE_ENGINE):
        return
    reads = f"{forced} reads" if forced else "the attention backends of NVIDIA GPUs read"
    yield InvalidSetting(
        why=f"--block-size {size}: {reads} blocks of a multiple of {least} tokens",
        source=(
            "vllm/v1/attention/backend.py: supports_block_size: 'block_size not supported'; "
            "vllm-project/vllm#41363"
        ),
        to={"block_size": None},
        expects="vLLM chooses a size that the backend reads; before 0.21 the kernel fails to compile instead",
    )


@cache
def least_block_sizes() -> Mapping[str, int]:
    """The least size in tokens of a block by backend, of which others must be multiples."""
    table = (FOLDER / "validity/block_sizes.toml").read_text(encoding="utf-8")
    sizes: Mapping[str, int] = tomllib.loads(table)["least"]
    return sizes


def _why_invalid(config: ServeConfig, model: Model, forced: str) -> tuple[str, str] | None:
    """The feature of the model that the backend lacks, and the message of vLLM."""
    wide, capability = model.head_dim, config.card.capability if config.card else None
    if model.mla and forced in HEADS_ONLY:
        return "has latent attention", "MLA not supported"
    if model.heads and not model.mla and "MLA" in forced:
        return "has no latent attention", "non-MLA not supported"
    if model.mla or forced not in ("FLASH_ATTN", "FLASHINFER"):
        return None
    if dtype_in_force(config) == "float32":
        return "runs in float32", "dtype not supported"
    if wide and (wide not in FLASHINFER_HEADS if forced == "FLASHINFER" else wide % 8):
        return f"has heads of {wide}", "head_size not supported"
    if capability and capability < HOPPER and model.architecture.startswith("GptOss"):
        return "has attention sinks, which it supports from compute capability 9.0 on", "sinks not supported"
    return None


CHECKS = (check_backend, check_block_size)
