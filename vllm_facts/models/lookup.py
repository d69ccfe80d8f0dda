"""The facts about a model, from its name or its `config.json`."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from flettner.vllm_facts.models.config_json import read_config
from flettner.vllm_facts.models.recurrent_state import find_state_bytes
from flettner.vllm_facts.models.table import LOADED, ModelRow, find_row
from flettner.vllm_facts.serve_config import Model
from flettner.vllm_facts.weight_formats import FP8, NONE, WeightFormat, format_from_name, stored_size

_HOUSES = frozenset({"meta", "nvidia", "ibm", "microsoft", "google", "openai", "unsloth", "neuralmagic"})
"""Makers' names that precede a model's name without being part of it: "Meta-Llama-3-8B"."""

_OTHER = re.compile(
    r"eagle\d?|draft(er)?|speculators?|medusa|mtp|dflash|lora|adapter|pruned|reap\d{0,4}|distill(ed)?|moe"
    r"|embed(ding)?|reranker|reward|prm|classifier|llava|ultravox|vision|vl|v|v\d{0,4}vl|multimodal|omni|audio|asr|tts"
    r"|tiny|mini|small|lite|nano|flash|air|random|dummy|debug|\d{0,6}layers?"
    r"|\d{1,6}(\.\d{1,4})?[bt]|\d{2,6}m|[ae]\d{1,6}(\.\d{1,4})?b|\d{1,6}x\d{1,6}b|\d{1,6}e"
)
"""Words beside a known name that make it another model: a drafter, another size, another modality."""

_SIZE = re.compile(r"(\d{1,4}x)?\d{1,6}(\.\d{1,4})?b")
_CONTEXT = re.compile(r"\d{1,9}[km]")  # "128k", "1m": another max_len

# Compiled here: the machine asks for a model, and must import nothing when it decides.
_LLAMA_SIZE = re.compile(r"(?:(?<=llama[23])|(?<=llama-[23]))_(?=\d+b)")  # "llama3_8b"
_DECIMAL = re.compile(r"(?<=\d)_(?=\d(?!\d+b))")
_LLAMA_VERSION = re.compile(r"\bllama(?=\d)")
_BITS = re.compile(r"\b(gptq|awq)-([348])b\b")  # bits, not billions
_DASHES = re.compile(r"-{2,}")
_BETWEEN_WORDS = re.compile(r"[^a-z0-9]+")

_FOLDERS = frozenset({"model", "models", "weights", "checkpoint", "hf", "main", "latest"})
"""Last parts of paths that name no model."""

_BLOCKS = (128, 128)
_BLOCK_FP8 = re.compile(r"qwen/qwen3|zai-org/glm-5|deepseek-ai/")
"""Makers whose "-FP8" checkpoints have one scale for each block of weights."""


@lru_cache(maxsize=256)
def find_model(name: str) -> Model | None:
    """The well-known model of this name; None for any other.

    Ignores a path, the maker's name, and suffixes ("-Instruct", "-AWQ", a fine-tune's name); a format
    among the suffixes gives quantization and weight_bytes. A drafter or another size is another model.
    """
    match = _find_row(name)
    return _build_model(*match, name) if match and match[0].layers else None


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a `config.json` describes; `name`: as it is served.

    A config lacks the number of parameters: it is taken from the well-known model of this name and shape,
    else counted if the family is known.
    """
    read, match = read_config(config, name), _find_row(name)
    if match is None or (match[0].layers, match[0].hidden) != (read.layers, read.hidden_size):
        return read
    row = match[0]
    read = read_config(config, name, count=row.parameters, active=_active(row))
    if row.key in LOADED and read.quantization == _published_format(row).method:
        read = replace(read, weight_bytes=LOADED[row.key])
    return read


def canonical_name(name: str) -> str:
    """The last part of a repository's name or a path, in lower case with "-" between its words.

    "/hub/models--Qwen--Qwen3-8B/snapshots/0a1b", "Qwen/Qwen3-8B" and "/data/Qwen3-8B/model" are "qwen3-8b".
    """
    parts = [part for part in name.strip().lower().replace("\\", "/").split("/") if part]
    while len(parts) > 1 and parts[-1] in _FOLDERS:
        parts.pop()
    cached = [part for part in parts if part.startswith("models--")]
    last = cached[-1].split("--")[-1] if cached else parts[-1] if parts else ""
    last = _LLAMA_SIZE.sub("-", last)
    last = _DECIMAL.sub(".", last).replace("_", "-").replace(" ", "-")
    last = _LLAMA_VERSION.sub("llama-", last)
    last = _BITS.sub(lambda match: f"{match[1]}-int{match[2]}", last)
    return _DASHES.sub("-", last.split(":")[0])


def is_open(plain: str) -> bool:
    """Whether the name has a placeholder, which may stand for another size or format."""
    return any(char in plain for char in "$<{") or "your" in _BETWEEN_WORDS.split(plain)


def name_words(plain: str) -> frozenset[str]:
    """The words of a name or of its part; a word may state a format."""
    return frozenset(_BETWEEN_WORDS.split(plain))


def _find_row(name: str) -> tuple[ModelRow, str] | None:
    """The row, and the part of the name that begins with its key."""
    plain = canonical_name(name)
    if is_open(plain):
        return None
    house, _, rest = plain.partition("-")
    for tried in (plain, rest) if house in _HOUSES else (plain,):
        row, is_other = _match_row(tried.split("-"))
        if row is not None or is_other:
            return (row, tried) if row and not is_other else None
    return _base_row(plain.split("-"))


def _match_row(words: list[str]) -> tuple[ModelRow | None, bool]:
    """The row with the longest key that the words begin with, and whether the rest names another model."""
    for length in range(len(words), 0, -1):
        row = find_row("-".join(words[:length]))
        if row is not None:
            return row, _is_other(words[length:])
    return None, False


def _base_row(words: list[str]) -> tuple[ModelRow, str] | None:
    """The base model with its size that a fine-tune's name has behind its own: "dolphin-2.9-llama-3-8b"."""
    for start in range(1, len(words)):
        row, is_other = _match_row(words[start:])
        if row is not None and _SIZE.search(row.key):
            return None if is_other or _is_other(words[:start]) else (row, "-".join(words[start:]))
    return None


def _begins_with_key(row: ModelRow, name: str) -> bool:
    plain = canonical_name(name)
    house, _, rest = plain.partition("-")
    return plain.startswith(row.key) or (house in _HOUSES and rest.startswith(row.key))


def _is_other(words: list[str]) -> bool:
    return any(_OTHER.fullmatch(part) for word in words for part in (word, *word.split(".")))


def _max_len(row: ModelRow, plain: str, whole: str) -> int | None:
    if plain == row.key:
        return row.base_len or row.max_len
    if any(_CONTEXT.fullmatch(word) for word in whole.removeprefix(row.key).split("-")):
        return None
    return row.max_len


def _active(row: ModelRow) -> float:
    return row.parameters if row.active is None else round(row.active * 1e4) * 1e5


def _published_format(row: ModelRow) -> WeightFormat:
    return format_from_name(frozenset({row.stored.partition(":")[0]})) or NONE


def _weight_block(row: ModelRow, weights: WeightFormat, name: str) -> tuple[int, int] | None:
    rows, _, columns = row.stored.partition(":")[2].partition("x")
    if columns and weights == _published_format(row):
        return int(rows), int(columns)
    words = name_words(name.lower())
    return _BLOCKS if weights == FP8 and _BLOCK_FP8.match(name.lower()) and "static" not in words else None


def _build_model(row: ModelRow, plain: str, name: str) -> Model:
    published = _published_format(row)
    words = name_words(plain.removeprefix(row.key))
    weights = format_from_name(words) or published
    mixed = any(word.endswith("mix") for word in words)  # "Int4-Int8Mix"
    size = None if mixed else stored_size(weights, row.parameters, row.apart)
    if weights == published and row.key in LOADED:
        size = LOADED[row.key]
    return Model(
        name=name,
        parameters=row.parameters,
        active_parameters=_active(row),
        layers=row.layers,
        hidden_size=row.hidden,
        heads=row.heads,
        kv_heads=row.kv_heads,
        head_dim=row.head_dim,
        experts=row.experts,
        active_experts=row.top,
        mla=row.mla,
        latent_dim=row.latent,
        hybrid=row.hybrid,
        attention_layers=row.kv_layers,
        state_bytes=find_state_bytes(row.model_type, row.hidden) if row.hybrid else None,
        max_len=_max_len(row, plain, canonical_name(name)),
        weight_bytes=size,
        quantization=weights.method,
        architecture=row.architecture,
        model_type=row.model_type,
        intermediate=row.intermediate,
        moe_intermediate=row.moe_intermediate,
        shared_intermediate=row.shared,
        vocab=row.vocab if _begins_with_key(row, name) else None,  # a fine-tune may add tokens
        vocabulary_parameters=float(row.vocab * row.hidden) if row.vocab and row.hidden else None,
        tied=row.tied,
        dtype=row.dtype,
        weight_block=_weight_block(row, weights, name),
        source=row.source,
    )
