"""The durations of past starts of a target: the expected duration and the deadline of the next one."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from flettner.primitives.bounded import parse_json
from flettner.primitives.files import replace_file
from flettner.vllm_facts.values import Setting

StartKind = Literal["warm", "cold", "unknown"]
SwapPart = Literal["stop", "sleep", "wake", "warm_up"]
"""`stop`, `sleep`: until its memory was free. `wake`: until it was awake."""


_STARTS: tuple[StartKind, ...] = ("warm", "cold", "unknown")
_KEPT = 5  # of each kind, so that old measurements do not outweigh recent starts
_MOST_KEYS = 50
_SLOWEST_TIMES = 3.0
_SHORTEST_DEADLINE_S = 60.0
_LONGEST_S = 7 * 24 * 3600.0  # longer values are errors
_NAME = "start_times.json"


@dataclass(frozen=True, slots=True)
class StartTimes:
    """A file in the state directory of the target. Content that cannot be read is ignored.

    A key names image and model: such starts take about as long.
    """

    path: Path

    @classmethod
    def at(cls, state_dir: Path) -> "StartTimes":
        return cls(state_dir / _NAME)

    def record(self, key: str, seconds: float, warm: bool | None) -> None:
        """Record the seconds until a start was healthy. `warm`: its compiled graphs were in the cache."""
        self._add(key, _kinds(warm)[-1], seconds)

    def record_part(self, key: str, part: SwapPart, seconds: float) -> None:
        self._add(key, part, seconds)

    @contextmanager
    def timed(self, key: str, part: SwapPart) -> Iterator[None]:
        """Record how long the body takes, unless it fails; nothing if the key is empty."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        yield
        if key:
            self.record_part(key, part, clock() - began_s)

    def expected_part(self, key: str, part: SwapPart) -> float | None:
        """Return the median of the last five; None: it was not measured yet."""
        seconds = self._of(key, part)
        return float(median(seconds)) if seconds else None

    def expected(self, key: str, warm: bool | None) -> float | None:
        """Return the median of the last five starts of this kind; of all kinds if `warm` is None."""
        seconds = self._of(key, *_kinds(warm))
        return float(median(seconds)) if seconds else None

    def predict(self, key: str, warm: bool | None, measured_s: float | None) -> tuple[float | None, str]:
        """Return the expected seconds of a start, and a note on where they are from.

        `measured_s`: of the running server. The core tells the seconds, with what else the change takes.
        """
        kind = {True: "a warm start", False: "a cold start", None: "a start"}[warm]
        if alike := self.expected(key, warm):
            return alike, f"{kind}: its time is as measured for the last ones"
        if other := self.expected(key, None):
            return other, f"{kind}: its time is as measured for starts of another kind"
        if measured_s:
            return measured_s, f"{kind}: its time is as measured for the running server"
        return None, f"{kind}: no start of this program and model was measured yet"

    def learned(self, key: str, warm: bool | None) -> float | None:
        """Return the deadline in seconds from past starts of this kind; None: there were none."""
        seconds = self._of(key, *_kinds(warm))
        return max(_SHORTEST_DEADLINE_S, _SLOWEST_TIMES * max(seconds)) if seconds else None

    def deadline(self, key: str, default_s: float, warm: bool | None = None) -> float:
        """Return the seconds after which a start has failed; `default_s` or more for an unknown kind."""
        learned = self.learned(key, warm)
        return max(default_s, self.learned(key, None) or 0.0) if learned is None else learned

    def foresee(self, key: str, setting: Setting, warm: bool | None) -> None:
        """Keep the prediction for the start of this setting, for `foreseen` when it has started."""
        predicted = self._read("foreseen")
        of_key = {
            name: prediction for name, prediction in predicted.pop(key, {}).items() if name != _name(setting)
        }
        predicted[key] = _last(of_key | {_name(setting): warm})
        self._write("foreseen", predicted)

    def foreseen(self, key: str, setting: Setting) -> bool | None:
        warm = self._read("foreseen").get(key, {}).get(_name(setting))
        return warm if isinstance(warm, bool) else None

    def _of(self, key: str, *kinds: StartKind | SwapPart) -> list[float]:
        times = self._read("seconds").get(key, {})
        return [second for kind in kinds for second in _numbers(times.get(kind))]

    def _add(self, key: str, kind: StartKind | SwapPart, seconds: float) -> None:
        if not 0 <= seconds <= _LONGEST_S:
            return
        tables = self._read("seconds")
        of_key = tables.pop(key, {})
        tables[key] = of_key | {kind: [*_numbers(of_key.get(kind)), round(seconds, 3)][-_KEPT:]}
        self._write("seconds", tables)

    def _read(self, part: str) -> dict[str, dict[str, Any]]:
        part_tables = self._body().get(part, {})
        tables = part_tables.items() if isinstance(part_tables, dict) else ()
        return {key: table for key, table in tables if isinstance(table, dict)}

    def _body(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            body = parse_json(self.path.read_bytes())
            return body if isinstance(body, dict) else {}
        return {}

    def _write(self, part: str, tables: dict[str, Any]) -> None:
        """Never raises: a failed write must not fail the start."""
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(self._body() | {part: _last(tables)}).encode())


def _kinds(warm: bool | None) -> tuple[StartKind, ...]:
    return _STARTS if warm is None else ("warm",) if warm else ("cold",)


def _numbers(stored: object) -> list[float]:
    values = stored if isinstance(stored, list) else []
    return [float(value) for value in values if isinstance(value, int | float) and 0 <= value <= _LONGEST_S]


def _last(table: dict[str, Any]) -> dict[str, Any]:
    return dict(list(table.items())[-_MOST_KEYS:])


def _name(setting: Setting) -> str:
    return hashlib.sha256(json.dumps(dict(setting), sort_keys=True, default=str).encode()).hexdigest()[:16]
