"""Reads the meaning of each flag of `vllm serve`: one TOML file for each subject, one table for each flag.

Type, choices, default and source come from the table of the release (vllm_facts/releases), the release that
removed a flag from vllm_facts/deprecated_flags.toml. A key of the same name in the TOML file wins; flags that
the release lacks give type and source there. The fields of `KnobFacts` say what each key holds.

`least` and `most` bound a number to what a host of today can use: 16 GPUs and their memory (512 GiB), the
longest context of a public model (10 Mi tokens), steps and batches beyond any that were measured.

A missing key means the careful choice: `start` is "cold", `class` is "gated", `tunable` is false. Tunable are
numbers, switches and choices that decide about speed and memory. Not tunable, and so changed only to values
that the operator's configuration names: what decides which model is served or how it answers, code and files
that are loaded, addresses, secrets, what is logged of requests, what the judge reads, how many hosts take
part, and all text and JSON.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from flettner.vllm_facts.catalogue.facts import Default, Effects, KnobFacts
from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.errors import FactError
from flettner.vllm_facts.releases import TABLE, ReleaseFlag, cite, source_of
from flettner.vllm_facts.values import Knob, Value

SUBJECTS = (
    "scheduler",
    "cache",
    "offloading",
    "parallel",
    "experts",
    "compilation",
    "speculative",
    "model",
    "mamba",
    "lora",
    "multimodal",
    "serving",
)
"""The order of `flettner knobs` and of docs/reference/knobs.md."""

_KEYS = {field.name for field in fields(KnobFacts)} - {"name", "klass"} | {"class"}
_KINDS = {"size": "int", "json_or_text": "json"}


def read_catalogue() -> Iterator[KnobFacts]:
    """The facts of every flag, by subject. Raises FactError for a key that KnobFacts lacks."""
    folder = Path(__file__).parent
    for subject in SUBJECTS:
        entries = tomllib.loads((folder / f"{subject}.toml").read_text(encoding="utf-8"))
        for name, entry in entries.items():
            if unknown := sorted(entry.keys() - _KEYS):
                raise FactError(f"{subject}.toml: [{name}]: unknown key {unknown[0]!r}")
            yield _facts(name, entry)


def _facts(name: Knob, entry: Mapping[str, Any]) -> KnobFacts:
    replaced = RENAMED.get(name)
    merged = {
        "source": source_of(name),
        "removed": replaced.since if replaced else None,
        "today": replaced.how if replaced else "",
        "start": "cold",
        "klass": entry.get("class", "gated"),
        **_parsed(TABLE.get(name)),
        **{key: value for key, value in entry.items() if key != "class"},
    }
    merged["source"] = cite(merged["source"])
    if "defaults" in entry:
        merged["defaults"] = tuple(Default(**default) for default in entry["defaults"])
    if "effects" in entry:
        merged["effects"] = Effects(**dict(effect.split() for effect in entry["effects"].split(", ")))
    if merged["type"] == "text":
        merged["choices"] = ()
    for key in ("choices", "needs"):
        merged[key] = tuple(merged.get(key, ()))
    return KnobFacts(name=name, **merged)


def _parsed(flag: ReleaseFlag | None) -> dict[str, Any]:
    """What the release's parser says of a flag, as KnobFacts has it."""
    if flag is None:
        return {}
    kind = _KINDS.get(flag.type, flag.type)
    parsed: dict[str, Any] = {"type": "list" if flag.several else "choice" if flag.choices else kind}
    if flag.several:
        parsed["items"] = kind
    elif flag.choices:
        parsed["choices"] = flag.choices
    if flag.default is not None:
        parsed |= {"default": _in_words(flag.default), "defaults": (Default(value=flag.default),)}
    return parsed


def _in_words(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
