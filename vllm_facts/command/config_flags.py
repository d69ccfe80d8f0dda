"""The `--config` file of a command line: what it says, and what no flag can take back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.domain.errors import ConfigError
from vllm_facts import config_entries
from vllm_facts.flag_table import ONE_WAY
from vllm_facts.flags import setting_of
from vllm_facts.values import Value

_LARGEST = 2**20
_KINDS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedEdit:
    """A line of the file that has to go."""

    file: str
    key: str
    value: Value


def words_of(path: str) -> list[str]:
    """The file's lines as flags. Raises ConfigError."""
    import yaml  # noqa: PLC0415 - few commands have such a file

    if not path.endswith(_KINDS):
        raise ConfigError(f"--config {path}: vLLM takes no other than a .yaml or .yml file")
    try:
        with Path(path).open("rb") as file:
            content: Any = yaml.safe_load(file.read(_LARGEST))
    except OSError as error:
        raise ConfigError(
            f"--config {path}: cannot be read: {error.strerror}; leave it out, or copy it"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: holds no flags: one `name: value` a line is expected")
    return config_entries.words_of(content)


def undone(to: Mapping[str, Value], file: Sequence[str], argv: Sequence[str]) -> list[UnsupportedEdit]:
    """What is in the file alone and is to be taken out: no flag of the command line does that."""
    told, own = setting_of(["vllm", "serve", *file]), setting_of(argv)
    return [
        UnsupportedEdit(file=str(own.get("config", "")), key=knob.replace("_", "-"), value=told[knob])
        for knob, value in to.items()
        if knob in told and knob not in own and (value is None or (value is False and knob in ONE_WAY))
    ]


def whole(to: Mapping[str, Value], file: Sequence[str], argv: Sequence[str]) -> dict[str, Value]:
    """The same changes; a part of JSON that is in the file alone with the rest of it."""
    told, own = setting_of(["vllm", "serve", *file]), setting_of(argv).keys()
    changes: dict[str, Value] = {}
    for knob, value in to.items():
        first, dot, rest = knob.partition(".")
        if not dot or first not in told or any(name.partition(".")[0] == first for name in own):
            changes[knob] = value
            continue
        parts = json.loads(str(changes.get(first, told[first])))
        left = {**parts, rest: value} if value is not None else {k: v for k, v in parts.items() if k != rest}
        changes[first] = json.dumps(left)
    return changes
