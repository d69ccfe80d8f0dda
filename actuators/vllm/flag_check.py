"""Ask the vLLM of another environment about command lines: what its own check says of each. Pure.

The script of arg_check.py runs there; how depends on the engine.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from flettner.actuators.vllm import arg_check
from flettner.redaction import mask

Json = dict[str, Any]

_PYTHONS = ("python3", "python")
_MODULES = frozenset({"vllm", "vllm.entrypoints.cli.main"})
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_MODULES_CACHE": "/tmp/hf_modules",  # noqa: S108 - the cache in a container is read-only
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunOutput:
    """The verdict of vLLM on one command. `kind` of an error: "usage", "value", "other"."""

    ok: bool
    kind: str = ""
    error: str = ""
    resolved: Mapping[str, Any] = field(default_factory=dict)  # with defaults for this model and GPU
    hash: str = ""  # commands of equal hash share their compiled graphs
    compiles: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunResult:
    """An answer for each command, or the reason `why` there is none."""

    answers: tuple[DryRunOutput, ...] = ()
    version: str = ""
    cache: str = ""  # folder in the container with the compiled graphs
    why: str = ""


def script() -> str:
    """Return the source of the script that runs in the image."""
    return Path(arg_check.__file__).read_text(encoding="utf-8")


def pythons_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the programs of the image that may be the Python of its vLLM, the likeliest first."""
    likely = []
    for word in command:
        program, folder = PurePosixPath(word).name, str(PurePosixPath(word).parent)
        if program.startswith("python"):
            likely.append(word)
            break
        if program == "vllm":
            likely += [f"{folder}/{python}" for python in _PYTHONS if word.startswith("/")]
            break
    return tuple(dict.fromkeys((*likely, *_PYTHONS)))


def flags_of(command: Sequence[str]) -> list[str]:
    """Return the words after the program: `vllm serve`, `python -m MODULE`, `python FILE`, or a script."""
    for at, word in enumerate(command):
        program = PurePosixPath(word).name
        if program == "vllm":
            return _without_serve(command[at + 1 :])
        if program.startswith("python"):
            return _after_python(command, at + 1)
    return _without_serve(command[1:])


def _after_python(command: Sequence[str], at: int) -> list[str]:
    while at < len(command):
        if command[at] == "-m":
            rest = list(command[at + 2 :])
            return _without_serve(rest) if command[at + 1] in _MODULES else rest
        if not command[at].startswith("-"):
            return _without_serve(command[at + 1 :])
        at += 2 if command[at] in {"-W", "-X"} else 1
    return []


def _without_serve(words: Sequence[str]) -> list[str]:
    return list(words[1:] if words[:1] in (["serve"], ("serve",)) else words)


def parse_result(code: int, output: str) -> DryRunResult:
    """Find the result of the script in its output, which vLLM writes to, too."""
    lines = [line for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith(arg_check.MARK):
            with suppress(ValueError, TypeError, KeyError):
                return _checked(json.loads(line.removeprefix(arg_check.MARK)))
    last = f": {mask(lines[-1])[:300]}" if lines else ""
    return DryRunResult(why=f"vLLM's own check ended with code {code} and no answer{last}")


def _checked(result: Json) -> DryRunResult:
    if result["vllm"] is None:
        return DryRunResult(why="its image has no vLLM to check with")
    answers = tuple(
        DryRunOutput(
            ok=bool(answer["ok"]),
            kind=str(answer.get("kind", "")),
            error=mask(str(answer.get("error", ""))),
            resolved=dict(answer.get("resolved") or {}),
            hash=str(answer.get("hash", "")),
            compiles=bool(answer.get("compiles", True)),
        )
        for answer in result["answers"]
    )
    return DryRunResult(answers=answers, version=str(result["vllm"]), cache=str(result["cache"]))


def find_rejection(checked: DryRunResult) -> str:
    """The error of vLLM for the second command; empty if it has none, or the first fails with it, too."""
    if checked.why:
        return ""
    now, then = checked.answers
    if then.ok or not (now.ok or (then.kind == "usage" and now.kind != "usage")):
        return ""
    return f"vLLM {checked.version} rejects it: {then.error}"
