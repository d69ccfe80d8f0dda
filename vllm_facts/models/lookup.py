"""The facts about a model, from its name or its `config.json`."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_facts.deployment import Model
from vllm_facts.models.config_json import read_config
from vllm_facts.models.expert_widths import EXPERT_WIDTHS
from vllm_facts.models.table import LENGTHS, LOADED, ROWS, ModelRow
from vllm_facts.weight_formats import NONE, WeightFormat, format_from_name, stored_size

_HOUSES = frozenset({"meta", "nvidia", "ibm", "microsoft", "google", "openai", "unsloth", "neuralmagic"})
"""Makers' names that precede a model's name without being part of it: "Meta-Llama-3-8B"."""

_OTHER = re.compile(
    r"eagle\d?|draft(er)?|speculators?|medusa|mtp|lora|adapter|pruned|distill(ed)?|embed(ding)?|reranker|reward"
    r"|vision|vl|multimodal|omni|audio|tiny|mini|small|lite|nano|flash|air|random|dummy|debug|\d*layers?"
    r"|\d+(\.\d+)?b|\d{2,}m|a\d+(\.\d+)?b|\d+x\d+b|\d+e"
)
"""Words after a known name that make it another model: a drafter, another size."""

_CONTEXT = re.compile(r"\d+[km]")  # "128k", "1m": another max_len


def find_model(name: str) -> Model | None:
    """The well-known model of this name; None for any other.

    Ignores a path, the maker's name, and suffixes ("-Instruct", "-AWQ", a fine-tune's name); a format
    among the suffixes gives quantization and weight_bytes. A drafter or another size is another model.
    """
    found = _find_row(name)
    return None if found is None else _build_model(*found, name)


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a `config.json` describes; `name`: as it is served.

    A config lacks the number of parameters: it is taken from the well-known model of this name and shape,
    else counted if the family is known.
    """
    read, found = read_config(config, name), _find_row(name)
    if found is None or (found[0].layers, found[0].hidden) != (read.layers, read.hidden_size):
        return read
    row = found[0]
    read = read_config(config, name, count=row.parameters, active=row.active or row.parameters)
    if row.key in LOADED and read.quantization == _published_format(row).method:
        read = replace(read, weight_bytes=LOADED[row.key])
    return read


def canonical_name(name: str) -> str:
    """The last part of a repository's name or a path, in lower case with "-" between its words.

    "/hub/models--Qwen--Qwen3-8B/snapshots/0a1b" and "Qwen/Qwen3-8B" are both "qwen3-8b".
    """
    parts = [part for part in name.strip().lower().replace("\\", "/").split("/") if part]
    cached = [part for part in parts if part.startswith("models--")]
    last = cached[-1].split("--")[-1] if cached else parts[-1] if parts else ""
    last = re.sub(r"(?<=\d)_(?=\d)", ".", last).replace("_", "-").replace(" ", "-")
    last = re.sub(r"\bllama(?=\d)", "llama-", last)
    return re.sub(r"-{2,}", "-", last.split(":")[0])


def _find_row(name: str) -> tuple[ModelRow, str] | None:
    """The row, and the part of the name that begins with its key."""
    plain = canonical_name(name)
    house, _, rest = plain.partition("-")
    row = _match_row(plain.split("-"))
    if row is None and house in _HOUSES:
        plain = rest
        row = _match_row(rest.split("-"))
    return (row, plain) if row else None


def _match_row(words: list[str]) -> ModelRow | None:
    """The row with the longest key that the words begin with; None if the rest names another model."""
    for length in range(len(words), 0, -1):
        row = ROWS.get("-".join(words[:length]))
        if row is not None:
            behind = [part for word in words[length:] for part in (word, *word.split("."))]
            return None if any(map(_OTHER.fullmatch, behind)) else row
    return None


def _max_len(row: ModelRow, plain: str) -> int | None:
    if plain in LENGTHS:
        return LENGTHS[plain]
    for key, length in LENGTHS.items():
        if key not in ROWS and plain.startswith(f"{key}-"):
            return length
    if any(_CONTEXT.fullmatch(word) for word in plain.removeprefix(row.key).split("-")):
        return None
    return row.max_len


def _published_format(row: ModelRow) -> WeightFormat:
    return format_from_name(frozenset({row.stored})) or NONE


def _build_model(row: ModelRow, plain: str, name: str) -> Model:
    published = _published_format(row)
    known = format_from_name(frozenset(re.split(r"[^a-z0-9]+", plain.removeprefix(row.key)))) or published
    size = stored_size(known, row.parameters, row.apart)
    if known == published and row.key in LOADED:
        size = LOADED[row.key]
    return Model(
        name=name,
        parameters=row.parameters,
        active_parameters=row.active or row.parameters,
        layers=row.layers,
        hidden_size=row.hidden,
        heads=row.heads,
        kv_heads=row.kv,
        head_dim=row.dim,
        experts=row.experts,
        active_experts=row.top,
        mla=row.latent is not None,
        latent_dim=row.latent,
        hybrid=row.attention is not None,
        attention_layers=row.attention,
        max_len=_max_len(row, plain),
        weight_bytes=size,
        quantization=known.method,
        architecture=row.architecture,
        vocab=row.vocab,
        moe_intermediate=EXPERT_WIDTHS.get(row.key),
        weight_block=_weight_block(row, known, name),
    )


def _weight_block(row: ModelRow, known: WeightFormat, name: str) -> tuple[int, int] | None:
    """The block of FP8 weights: the makers of these models publish them in 128 x 128."""
    if known.method != "fp8":
        return None
    blocks = row.stored == "fp8" or (row.key.startswith("qwen3") and name.lower().startswith("qwen/"))
    return (128, 128) if blocks else None
