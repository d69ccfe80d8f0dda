"""Flags whose value is JSON: syntax errors, which make vLLM exit with code 2, and accepted keys."""

import ast
import json
import re

from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.releases import TABLE
from flettner.vllm_facts.values import Knob, Value

STRICT = frozenset(name for name, flag in TABLE.items() if flag.type == "json")
"""Flags that vLLM reads as JSON."""

BRACED = frozenset(name for name, flag in TABLE.items() if flag.type == "json_or_text")
"""Flags that vLLM reads as JSON only if the value begins with a brace (union_dict_and_str)."""

OBJECTS = frozenset(name for name, flag in TABLE.items() if flag.object)
"""Flags of STRICT whose JSON is keys and values."""

KEYS = {name: flag.keys for name, flag in TABLE.items() if flag.keys}
"""The keys of each JSON flag for which vLLM refuses unknown keys."""

RENAMED_KEYS = {"compilation_config": {"level": "mode"}}
"""Keys of older releases, and their names today."""

_UNSET = ("", "None")
_NEAR = 16  # characters shown around an error
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_SUFFIXED = re.compile(r"\b(\d+(?:\.\d+)?)[kKmMgGtT]\b")  # vLLM reads `{"bytes": 80m}` too
_PAIRS = re.compile(r"\A(\w+=\d+)(,\w+=\d+)*")


def describe_json_error(knob: Knob, value: Value) -> str:
    """Why and where the value is invalid JSON, as the end of a sentence; "" for a valid value."""
    if knob in OBJECTS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'is {value}, yet wants keys and values: {{"key": {value}}}'
    if not isinstance(value, str) or value in _UNSET or is_placeholder(value):
        return ""
    if knob not in STRICT and not (knob in BRACED and value.lstrip().startswith("{")):
        return ""
    try:
        read = json.loads(_numbers(value))
    except json.JSONDecodeError as error:
        near = value[max(0, error.pos - _NEAR) :][: 2 * _NEAR]
        return f"is not JSON: {error.msg} at character {error.pos + 1}, near {near!r}{_hint(value)}"
    except RecursionError:
        return "is no JSON that can be read: it is nested too deeply"
    wrong = knob in OBJECTS and not isinstance(read, dict | None)
    return f"is {value}, but must be an object: {{…}}" if wrong else ""


def repair_json(knob: Knob, value: Value) -> str:
    """The value as valid JSON if its meaning is unambiguous, else ""."""
    if knob == "compilation_config" and isinstance(value, int):  # the level, as -O had it
        return json.dumps({"mode": value})
    if not isinstance(value, str):
        return ""
    if _PAIRS.fullmatch(value):  # old form of `--limit-mm-per-prompt image=2`
        pairs = (pair.split("=") for pair in value.split(","))
        return json.dumps({name: int(number) for name, number in pairs})
    try:
        read = ast.literal_eval(value)  # {'method': 'ngram'}
        return json.dumps(read, allow_nan=False) if isinstance(read, dict) else ""
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ""


def parse_json_part(value: Value) -> object:
    """The value of `--flag.part VALUE`, which vLLM parses as JSON too."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _hint(value: str) -> str:
    if "'" in value and '"' not in value:
        return "; JSON has double quotes, and single quotes stand around it for the shell: '{\"key\": 1}'"
    if value.lstrip().startswith("{") and '"' not in value:
        return "; its double quotes are gone: single quotes around it keep the shell from taking them"
    return ""


def _numbers(value: str) -> str:
    parts = _QUOTED.split(value)
    return "".join(part if at % 2 else _SUFFIXED.sub(r"\1", part) for at, part in enumerate(parts))
