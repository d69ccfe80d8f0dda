"""vLLM's `--config FILE`: a YAML file whose entries stand for flags of the command line.

vLLM puts the flags of the file before those of the command line, which win
(vllm/utils/argparse_utils.py: load_config_file).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flettner.primitives.files import read_file
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.flag_table import ONE_WAY
from flettner.vllm_facts.values import Value

_LARGEST = 2**20
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedEdit:
    """A line of the file that must be removed by hand."""

    file: str
    key: str
    value: Value


def config_path(argv: Sequence[str]) -> str:
    """The file that the command line names; "" if it names no file. Raises FlagError.

    Only the two words `--config FILE` count: vLLM ignores `--config=FILE`.
    """
    if "--config" not in argv:
        return ""
    if argv.count("--config") > 1:
        raise FlagError("--config is given twice: vLLM takes one file only")
    at = argv.index("--config") + 1
    if at == len(argv):
        raise FlagError("--config has no file name after it: name a file")
    return argv[at]


def read_config(path: str) -> list[str]:
    """The flags of a file on this machine. Raises FlagError."""
    if not path.endswith(_SUFFIXES):
        raise FlagError(f"--config {path}: vLLM accepts only a .yaml or .yml file")
    try:
        text = read_file(Path(path), _LARGEST).decode()
    except OSError as error:
        raise FlagError(
            f"--config {path}: cannot be read: {error.strerror}; leave it out, or copy it"
        ) from error
    except UnicodeDecodeError as error:
        raise FlagError(f"--config {path} is not YAML: it is not UTF-8") from error
    return parse_config(text, path)


def parse_config(text: str, path: str) -> list[str]:
    """The flags in the file, in its order, as vLLM writes them on the command line. Raises FlagError."""
    import yaml  # noqa: PLC0415 - few command lines have such a file

    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise FlagError(f"--config {path}{line} is not YAML: correct the file") from error
    if entries is None:
        return []
    if not isinstance(entries, Mapping):
        raise FlagError(f"--config {path} holds no `flag: value` lines: correct the file")
    return [word for key, value in entries.items() for word in _flag_words(str(key), value)]


def _flag_words(key: str, value: object) -> list[str]:
    flag = f"--{key}"
    match value:
        case True:
            return [flag]
        case False:
            # vLLM looks for a flag called exactly `--no-KEY`, finds none with underscores, and drops the line
            dropped = "_" in key or key.replace("-", "_") in ONE_WAY or key.startswith("no-")
            return [] if dropped else [f"--no-{key}"]
        case []:
            return []
        case list():
            return [flag, *map(str, value)]
        case dict():
            return [flag, json.dumps(value)]
        case _:
            return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]


def unsupported_edits(
    to: Mapping[str, Value], file: Sequence[str], argv: Sequence[str]
) -> list[UnsupportedEdit]:
    """The flags that only the file gives and that `to` removes: no flag of the command line does that."""
    in_file, own = parse_setting(["vllm", "serve", *file]), parse_setting(argv)
    return [
        UnsupportedEdit(file=str(own.get("config", "")), key=knob.replace("_", "-"), value=in_file[knob])
        for knob, value in to.items()
        if knob in in_file and knob not in own and (value is None or (value is False and knob in ONE_WAY))
    ]


def merge_json_parts(to: Mapping[str, Value], file: Sequence[str], argv: Sequence[str]) -> dict[str, Value]:
    """The changes `to`, where a part of JSON that only the file gives becomes a change of the full JSON."""
    in_file, own = parse_setting(["vllm", "serve", *file]), parse_setting(argv).keys()
    changes: dict[str, Value] = {}
    for knob, value in to.items():
        first, dot, rest = knob.partition(".")
        if not dot or first not in in_file or any(name.partition(".")[0] == first for name in own):
            changes[knob] = value
            continue
        parts = json.loads(str(changes.get(first, in_file[first])))
        left = {**parts, rest: value} if value is not None else {k: v for k, v in parts.items() if k != rest}
        changes[first] = json.dumps(left)
    return changes
