"""The difference between two config files by key, and which of it a running daemon takes. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flettner.agent.config.tables import FileTable
from flettner.redaction import MASK, masked
from flettner.vllm_facts.knobs import tunable

_RELOADED = re.compile(
    r"(agent\.(mode|approval)|api\.public_url|windows|policies|notify|"
    r"targets\.[^.]+\.(slo|bounds|windows|rollout|quality|cost|engine\.(strategy|restart_after)))(\..*|$)"
)
_KEPT_OUT = re.compile(r"api\.|notify\.|targets\.[^.]+\.(engine|traffic|sensors|quality|git)\.|agent\.audit")
"""Keys of programs and services, whose values may be secrets: only that they differ is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A key with another value. None: the key is absent; `***`: the value may be a secret."""

    key: str  # "targets.chat.slo.ttft.under"
    before: object
    after: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadReport:
    """What a reload changed; nothing, if the file is the same."""

    changes: tuple[ConfigChange, ...] = ()
    waiting: tuple[str, ...] = ()  # targets whose running rollout goes on under the earlier rules


def flatten(tables: FileTable) -> dict[str, object]:
    """Every key with its value, or its default; tables of a list by their name, else by number."""
    document = tables.model_dump()
    document["targets"] = {table["name"]: table for table in document["targets"]}
    document["notify"] = {table["name"] or table["kind"]: table for table in document["notify"]}
    return dict(_leaves(document, ""))


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, tuple) and any(isinstance(item, Mapping) for item in value):
        value = {str(number): item for number, item in enumerate(value, start=1)}
    if value == {}:  # a plugin without options, in a table of plugins
        value = True if key.rpartition(".")[0].endswith(("policies", "sensors", "authenticators")) else None
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    elif value is not None:
        yield key, value


def find_changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[ConfigChange, ...]:
    """What differs between two flattened files, without secrets."""
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return tuple(
        ConfigChange(key=key, before=_shown(key, before.get(key)), after=_shown(key, after.get(key)))
        for key in keys
    )


def find_fixed(changes: tuple[ConfigChange, ...]) -> tuple[str, ...]:
    """The changed keys that a daemon reads at its start only; a target that comes or goes as a whole."""
    fixed = [change.key for change in changes if not _RELOADED.fullmatch(change.key)]
    names = {key.removesuffix(".name") for key in fixed if re.fullmatch(r"targets\.[^.]+\.name", key)}
    inside = tuple(f"{name}." for name in names)
    return tuple(sorted({*names, *(key for key in fixed if not key.startswith(inside))}))


def _shown(key: str, value: object) -> object:
    knob = re.match(r"targets\.[^.]+\.bounds\.(.+)\.[^.]+$", key)
    if value is None or _KEPT_OUT.match(key) or (knob is not None and not tunable(knob[1])):
        return None if value is None else MASK
    return masked(value, name=key.rpartition(".")[2])
