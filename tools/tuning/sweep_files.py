"""Parameter files of `vllm bench sweep` (0.32): `--serve-params`, `--bench-params`, and what it would run.

A file is a list of objects, or an object of them by name; each object names flags and values.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.tools.tuning.searches import Point

_NAME = "_benchmark_name"
_MAX_FILE = 16 * 2**20


def read_params(path: Path, option: str) -> list[Point]:
    """Read a parameter file. Raises ConfigError."""
    try:
        if path.stat().st_size > _MAX_FILE:
            raise ConfigError(f"{option} {path}: is larger than {_MAX_FILE >> 20} MiB")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{option} {path}: cannot be read as JSON: {error}") from error
    rows = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{option} {path}: must be a list of objects, or an object of them by name")
    return [_point(row, option, path) for row in rows]


def write_params(path: Path, points: Sequence[Mapping[str, Any]]) -> None:
    path.write_text(json.dumps([dict(point) for point in points], indent=2) + "\n", "utf-8")


def _point(row: Mapping[str, Any], option: str, path: Path) -> Point:
    point = {}
    for name, value in row.items():
        if name == _NAME:
            continue
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"{option} {path}: {name}: must be text, a number or true or false")
        point[name.removeprefix("--").replace("-", "_")] = value
    return point
