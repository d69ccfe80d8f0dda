"""The values that a flag takes in the release of a server."""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

from flettner.vllm_facts.fact_tables import FOLDER
from flettner.vllm_facts.flag_table import SEVERAL
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.model_parsers import find_family
from flettner.vllm_facts.releases.history import describe_value, values_in
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import text_of
from flettner.vllm_facts.values import Knob, Value

_FACTORS = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
_SHORT_NUMBER = re.compile(r"([0-9]{1,9})([kmKM])")
_PARSERS = frozenset({"tool_call_parser", "reasoning_parser"})
"""Flags that take more values with a plugin."""

_ELSEWHERE = frozenset({"quantization", "model", "attention_backend"})
"""Flags whose values other rules judge."""

_LISTED = 12


@cache
def _synonyms() -> Mapping[Knob, Mapping[str, str]]:
    return tomllib.loads((FOLDER / "value_synonyms.toml").read_text(encoding="utf-8"))


def was_accepted(config: ServeConfig, knob: Knob) -> bool:
    """Whether the log shows that a server got past this name: its build may know more than the tables."""
    start = config.start
    passed = start is not None and (start.passed_flags or start.reached_engine)
    return passed and start is not None and start.setting.get(knob) == config.setting.get(knob)


def find_misfit(config: ServeConfig, knob: Knob, value: Value) -> str:
    """Why the release of the server refuses the value; "" if it does not, or if that is unknown."""
    facts = KNOBS.get(knob)
    if value is None or (facts is not None and facts.type != "choice"):
        return "" if facts is None else facts.misfit(value)
    choices = _choices(config, knob)
    if not choices or isinstance(value, bool) or _is_choice(knob, str(value), choices):
        return ""
    listed = sorted(choices)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED + 1 else ""
    shown = listed[:_LISTED] if more else listed
    return f"is one of {', '.join(shown)}{more}"


def _choices(config: ServeConfig, knob: Knob) -> frozenset[str]:
    """The values of the flag in this release, in any release if that is unknown; empty: not judged."""
    plugged = knob in _PARSERS and any("parser_plugin" in name for name in config.setting)
    if knob in _ELSEWHERE or knob in SEVERAL or plugged:
        return frozenset()
    return values_in(knob, config.version) or frozenset()


def _is_choice(knob: Knob, value: str, choices: frozenset[str]) -> bool:
    """VLLM reads the names of backends in any case, with - for _."""
    if not knob.endswith("_backend"):
        return value in choices
    return plain_name(value) in map(plain_name, choices)


def plain_name(value: str) -> str:
    return value.lower().replace("-", "_")


def is_number_flag(knob: Knob) -> bool:
    facts = KNOBS.get(knob)
    return facts is not None and facts.type != "choice"


def find_meant_value(config: ServeConfig, knob: Knob, value: Value) -> Value:
    """The value that the release takes and that is meant; None if that is unknown."""
    facts = KNOBS.get(knob)
    if facts is not None and facts.type != "choice":
        return _meant_number(knob, value)
    choices = _choices(config, knob)
    meant = _synonyms().get(knob, {}).get(str(value).lower(), "")
    if knob in _PARSERS and describe_value(knob, str(value)) == "":
        family = find_family(text_of(config, "model"))
        named = family.parsers(knob, config.version) if family else ()
        return named[0] if named else meant if meant in choices else None
    same = [choice for choice in choices if plain_name(choice) == plain_name(str(value))]
    return meant if meant in choices else same[0] if len(same) == 1 else None


def _meant_number(knob: Knob, value: Value) -> Value:
    """The number that `8k` means for a flag of plain numbers, and the share that 90 means."""
    facts = KNOBS[knob]
    short = _SHORT_NUMBER.fullmatch(value) if isinstance(value, str) and facts.type == "int" else None
    number: Value = int(short[1]) * _FACTORS[short[2]] if short else None
    if isinstance(value, int | float) and facts.max == 1 and 1 < value <= 100:  # noqa: PLR2004 - per cent
        number = value / 100 if value > 2 else None  # noqa: PLR2004 - 1.5 is no percentage
    return None if number is None or facts.misfit(number) else number


def describe_near_values(config: ServeConfig, knob: Knob, value: Value) -> str:
    """When the value is one of another release, and which values of this one are like it."""
    elsewhere = describe_value(knob, str(value))
    near = get_close_matches(str(value), _choices(config, knob), n=3, cutoff=0.5)
    parts = [
        f"vLLM {elsewhere} takes it" if elsewhere else "",
        f"is {' or '.join(near)} meant?" if near else "",
    ]
    return "; ".join(filter(None, parts)) or "give one of the values that vLLM takes"
