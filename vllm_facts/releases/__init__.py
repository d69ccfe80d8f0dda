"""The flags of `vllm serve` as the argument parser of a release describes them.

`scripts/vllm_flags.py` writes one table for each release. This module reads the newest.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from flettner.vllm_facts.values import Knob, Value


class ReleaseFlag(NamedTuple):
    """The description of a flag in the argument parser."""

    group: str
    type: Literal["bool", "int", "float", "size", "text", "json", "json_or_text"]  # size: 8k is 8000, 8K 8192
    default: Value = None  # also None if vLLM decides at start
    choices: tuple[Value, ...] = ()
    several: bool = False  # takes one or more values
    one_way: bool = False  # a switch without a `--no-` form
    short: tuple[str, ...] = ()
    aliases: tuple[Knob, ...] = ()
    object: bool = False  # JSON that is keys and values
    keys: frozenset[str] = frozenset()  # that vLLM accepts in the JSON; empty: any


def _newest() -> Path:
    tables = Path(__file__).parent.glob("flags-*.json")
    return max(tables, key=lambda table: [int(part) for part in table.stem.removeprefix("flags-").split(".")])


def _read(table: Path) -> tuple[str, Mapping[str, str], Mapping[Knob, ReleaseFlag]]:
    document = json.loads(table.read_text(encoding="utf-8"))
    flags = {
        name: ReleaseFlag(
            **row
            | {
                "choices": tuple(row.get("choices", ())),
                "short": tuple(row.get("short", ())),
                "aliases": tuple(row.get("aliases", ())),
                "keys": frozenset(row.get("keys", ())),
            }
        )
        for name, row in document["flags"].items()
    }
    return document["version"], document["sources"], flags


_VERSION, _SOURCES, TABLE = _read(_newest())

RELEASE = (int(_VERSION.split(".")[0]), int(_VERSION.split(".")[1]))

NAME = f"vLLM {RELEASE[0]}.{RELEASE[1]}"

FLAGS = frozenset(TABLE).union(*(flag.aliases for flag in TABLE.values()))
"""All canonical names and aliases of flags that the parser accepts."""


_FILE_OF_VLLM = re.compile(r"(?:^|(?<=; ))vllm/")


def cite(source: str) -> str:
    """A source with the release before each file of vLLM: tests/integration/vllm checks them with it."""
    return _FILE_OF_VLLM.sub(f"{NAME} vllm/", source)


def source_of(knob: Knob) -> str:
    """The file of vLLM's source that defines the flag, "" for a flag that the release lacks."""
    flag = TABLE.get(knob)
    return cite(f"vllm/{_SOURCES[flag.group]}") if flag else ""
