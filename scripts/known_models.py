# ruff: noqa: INP001 - run by hand, never imported by the product
"""Adds models to the table vllm_facts/models/known_models.csv, from their config.json files.

    .venv/bin/python scripts/known_models.py --source "model card" FOLDER...

Each FOLDER is called OWNER--NAME and has the model's `config.json`, as `hf download OWNER/NAME
config.json model.safetensors.index.json --local-dir OWNER--NAME` leaves it. The number of parameters
comes from the index, else from the shapes of a known family, else from --billions. The key is the name
without "-Instruct" and the like; a line with that key is replaced. A test compares shapes and size.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from flettner.vllm_facts.models.config_json import read_config
from flettner.vllm_facts.models.lookup import canonical_name
from flettner.vllm_facts.models.table import COLUMNS, LINES, TABLE, ModelRow, find_row

_ROLE = re.compile(r"(-(instruct|chat|it|hf|base))+$")
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")


def read_row(folder: Path, source: str, billions: float | None) -> ModelRow:
    config = json.loads((folder / "config.json").read_text())
    name = folder.name.replace("--", "/")
    billions = billions or _indexed_billions(folder, config)
    model = read_config(config, name, count=billions and billions * 1e9)
    if model.parameters is None:
        sys.exit(f"{folder}: the family is not counted; give --billions")
    text = next((config[key] for key in _TEXT if isinstance(config.get(key), dict)), config)
    blocks = model.weight_block
    dense = text.get("first_k_dense_replace") or 0
    shared = text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * (
        model.moe_intermediate or 0
    )
    return ModelRow(
        key=_ROLE.sub("", canonical_name(name)),
        architecture=model.architecture,
        model_type=model.model_type,
        billions=model.parameters / 1e9,
        active=model.active_parameters / 1e9 if model.active_parameters and model.experts else None,
        layers=model.layers,
        kv_layers=model.attention_layers,
        hidden=model.hidden_size,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        intermediate=model.intermediate,
        experts=model.experts,
        top=model.active_experts,
        moe_intermediate=model.moe_intermediate,
        shared=(shared or None) if model.experts else None,
        moe_layers=model.layers - dense if model.experts and model.layers and dense else None,
        vocab=model.vocab,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        hybrid=model.hybrid,
        mla=model.mla,
        latent=model.latent_dim,
        max_len=model.max_len,
        base_len=None,
        dtype=model.dtype,
        stored=model.quantization + (f":{blocks[0]}x{blocks[1]}" if blocks else ""),
        encoder=None,
        source=source.replace(",", ";"),
    )


def merge(added: dict[str, ModelRow]) -> None:
    """Write the table with these rows in place of those with the same keys."""
    rows = {key: row for key in LINES if (row := find_row(key))} | added
    groups: dict[tuple[object, ...], list[str]] = {}
    for key, row in rows.items():
        groups.setdefault(_facts(row), []).append(key)
    lines = [_line(keys, rows[keys[0]]) for keys in groups.values()]
    lines.sort(key=lambda line: (line.split(",")[1:3], line))
    TABLE.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")


def _facts(row: ModelRow) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in row.__slots__ if name != "key")


def _line(keys: list[str], row: ModelRow) -> str:
    cells = [" ".join(keys)]
    for name in COLUMNS[1:]:
        value = getattr(row, name)
        cells.append(("yes" if value else "") if isinstance(value, bool) else _text(value))
    return ",".join(cells)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return "" if value is None else str(value)


def _indexed_billions(folder: Path, config: dict[str, Any]) -> float | None:
    """Read the size from the index of the weights, for a checkpoint in 16 bit."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file() or "quantization_config" in config:
        return None
    return float(json.loads(index.read_text())["metadata"]["total_size"]) / 2e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--billions", type=float)
    args = parser.parse_args()
    rows = [read_row(folder, args.source, args.billions) for folder in args.folders]
    merge({row.key: row for row in rows})


if __name__ == "__main__":
    main()
