"""The variables of vLLM's benchmarks/auto_tune/auto_tune.sh as options of `flettner tune`.

The script's own search for the largest rate is left out: `flettner tune` tunes for a given rate.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from flettner.agent.domain.errors import ConfigError
from flettner.primitives.files import read_file
from flettner.tools.tuning.searches import Point

_ASSIGNED = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Z_]+)=", re.MULTILINE)
_WORD = r"""(?:"([^"]*)"|'([^']*)'|([^\s"'}]*))"""
_LINE = re.compile(
    rf"""^[ \t]*(?:export[ \t]+)?([A-Z_]+)=(?:(?:\$\{{\1:-{_WORD}\}})|{_WORD})[ \t]*(?:[ \t]\#.*)?$""",
    re.MULTILINE,
)
_DEFAULTS = {
    "MODEL": "meta-llama/Llama-3.1-8B-Instruct",
    "TP": "1",
    "DOWNLOAD_DIR": "",
    "INPUT_LEN": "4000",
    "OUTPUT_LEN": "16",
    "MAX_MODEL_LEN": "4096",
    "MIN_CACHE_HIT_PCT": "0",
    "MAX_LATENCY_ALLOWED_MS": "100000000000",
    "NUM_SEQS_LIST": "128 256",
    "NUM_BATCHED_TOKENS_LIST": "512 1024 2048 4096",
}
_NO_LIMIT_MS = 1e9
_MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTuneVariables:
    """`command`: words of the server; `e2e_s`: None without a limit; lengths in tokens."""

    command: tuple[str, ...]
    points: tuple[Point, ...]
    input_len: int
    prefix_len: int
    output_len: int
    e2e_s: float | None


def read_variables(path: Path) -> AutoTuneVariables:
    """Read the assignments of the script, or of a file with only those. Raises ConfigError.

    Of `NAME=${NAME:-VALUE}`, as the script has it since it can be run in batches, the value.
    """
    try:
        text = read_file(path, _MAX_FILE).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"--auto-tune {path}: cannot be read: {error.strerror}") from error
    variables = dict(_DEFAULTS)
    given = {name: "".join(forms) for name, *forms in _LINE.findall(text)}
    unread = sorted({*_ASSIGNED.findall(text)} & variables.keys() - given.keys())
    if unread:
        raise ConfigError(
            f"--auto-tune {path}: the value of {unread[0]} cannot be read: write it as {unread[0]}=VALUE"
        )
    if not given.keys() & variables.keys():
        raise ConfigError(f"--auto-tune {path}: sets none of {', '.join(_DEFAULTS)}")
    variables |= {name: value for name, value in given.items() if name in variables}
    return _parse(variables, path)


def _parse(variables: Mapping[str, str], path: Path) -> AutoTuneVariables:
    numbers = {
        name: _whole(variables[name], name, path) for name in ("INPUT_LEN", "OUTPUT_LEN", "MAX_MODEL_LEN")
    }
    if numbers["INPUT_LEN"] + numbers["OUTPUT_LEN"] > numbers["MAX_MODEL_LEN"]:
        raise ConfigError(f"--auto-tune {path}: INPUT_LEN + OUTPUT_LEN is above MAX_MODEL_LEN")
    prefix = numbers["INPUT_LEN"] * _whole(variables["MIN_CACHE_HIT_PCT"], "MIN_CACHE_HIT_PCT", path) // 100
    limit_ms = _whole(variables["MAX_LATENCY_ALLOWED_MS"], "MAX_LATENCY_ALLOWED_MS", path)
    folder = ("--download-dir", variables["DOWNLOAD_DIR"]) if variables["DOWNLOAD_DIR"] else ()
    seqs, budgets = (
        [_whole(word, name, path) for word in variables[name].split()]
        for name in ("NUM_SEQS_LIST", "NUM_BATCHED_TOKENS_LIST")
    )
    return AutoTuneVariables(
        command=(
            *("vllm", "serve", variables["MODEL"], "--tensor-parallel-size", variables["TP"]),
            *("--max-model-len", variables["MAX_MODEL_LEN"], "--port", "8004", *folder),
        ),
        points=tuple(
            {"max_num_seqs": number, "max_num_batched_tokens": budget}
            for number, budget in product(seqs, budgets)
        ),
        input_len=numbers["INPUT_LEN"] - prefix,
        prefix_len=prefix,
        output_len=numbers["OUTPUT_LEN"],
        e2e_s=limit_ms / 1000 if limit_ms < _NO_LIMIT_MS else None,
    )


def _whole(text: str, name: str, path: Path) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise ConfigError(f"--auto-tune {path}: {name} {text!r}: must be a whole number")
    return int(text)
