"""The flags in use whose code a traceback passes through, for errors that nobody has described yet."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Knob, Value, spell_flag

_LONGER = 6  # times: 30 s for an image
_TRACE = 120  # lines: the tracebacks of a worker and of the engine
_OF_CODE = re.compile(r'\bFile "|scheduled_spec_decode_tokens=|\bassert\b|\b\w+\.(?:py|cuh?|cpp)\b')
_FRAME = re.compile(r'(?:^|[\])] ) *File "[^"]{1,300}", line \d')
_REPORT = re.compile(r"\b(?:INFO|WARNING|DEBUG)\b.*?\]|non-default args|with config: ")
"""Lines that list the configuration, and so the words of flags whose code has not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeArea:
    """A part of the code. `pattern` is searched in lower case; `flags` and `variables` turn it on."""

    name: str
    pattern: str
    flags: tuple[Knob, ...] = ()
    variables: tuple[str, ...] = ()
    crashes: bool = False  # on the GPU, more often than other code

    def find_users(self, config: ServeConfig) -> list[str]:
        """What of the command uses this code, as it is written there."""
        given = [knob for knob in self.flags if config.setting.get(knob) not in (None, False)]
        variables = [f"{name}={config.env[name]}" for name in self.variables if name in config.env]
        return [*map(spell_flag, given), *variables]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePart:
    """A part of AITER's kernels, by the names of its files and functions in lower case."""

    pattern: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSwitch:
    """What leaves a part of the code out that runs by default: a flag, or a variable of the environment."""

    name: str
    pattern: str
    value: Value
    knob: Knob = ""
    variable: str = ""
    since: str = ""  # the first release with it, where that is not older than the table
    cost: str = ""

    def helps(self, config: ServeConfig) -> bool:
        """Whether the release has it and the command does not set it."""
        present, first = release_of(config.version), release_of(self.since)
        known = present is None or first is None or present >= first
        return known and self.knob not in config.setting and self.variable not in config.env

    def describe(self) -> str:
        """`--enforce-eager leaves CUDA graphs and compilation out (slower decoding)`"""
        value = "" if self.value is True else f" {self.value}"
        what = f"{self.variable}={self.value}" if self.variable else f"{spell_flag(self.knob)}{value}"
        return f"{what} leaves {self.name} out" + (f" ({self.cost})" if self.cost else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimit:
    """A part of the code that gives up after the seconds of a variable. `instead`: what needs no time."""

    name: str
    pattern: str
    variable: str
    default_s: int
    instead: str
    source: str

    def longer(self, config: ServeConfig) -> str:
        """Six times what it is, for the variable."""
        given = config.env.get(self.variable, "")
        return str(_LONGER * (int(given) if given.isdecimal() and int(given) else self.default_s))


def name_suspects(config: ServeConfig) -> str:
    """What of the command a crash on the GPU may come from: by its traceback, else by experience."""
    areas = read_rows(FOLDER / "code_areas.toml", "area", CodeArea)
    usual = [
        f"{area.name} ({', '.join(users)})"
        for area in areas
        if area.crashes and (users := area.find_users(config))
    ]
    return name_users(config, config.log[-_TRACE:]) or " or ".join(usual)


def name_users(config: ServeConfig, lines: Sequence[str]) -> str:
    """`speculative decoding (--speculative-config)`: the narrowest area of a traceback; "" for none."""
    text = _code_of(lines)
    for area in read_rows(FOLDER / "code_areas.toml", "area", CodeArea):
        if (users := area.find_users(config)) and re.search(area.pattern, text):
            return f"{area.name} ({', '.join(users)})"
    return ""


def name_part(lines: Sequence[str]) -> str:
    """The variable of the part of AITER that the lines name; "" for none."""
    text = "\n".join(line.lower() for line in lines)
    parts = read_rows(FOLDER / "code_areas.toml", "part", CodePart)
    return next((part.variable for part in parts if re.search(part.pattern, text)), "")


def name_part_switch(config: ServeConfig, lines: Sequence[str]) -> str:
    """`VLLM_ROCM_USE_AITER_MLA=0, which leaves that part out`, if a traceback passes through AITER."""
    variable = name_part([line for line in _code_of(lines).splitlines() if "aiter" in line])
    return f"{variable}=0, which leaves that part out" if variable and variable not in config.env else ""


def name_switch(config: ServeConfig, lines: Sequence[str]) -> str:
    """What leaves the narrowest default part of a traceback out; "" for none."""
    text = _code_of(lines)
    switches = read_rows(FOLDER / "code_areas.toml", "switch", CodeSwitch)
    fitting = (switch for switch in switches if switch.helps(config) and re.search(switch.pattern, text))
    return next((switch.describe() for switch in fitting), "")


def _code_of(lines: Sequence[str]) -> str:
    """The lines of a traceback, in lower case."""
    of_code = (line for line in lines if _OF_CODE.search(line))
    return "\n".join(line.lower() for line in of_code if _FRAME.search(line) or not _REPORT.search(line))


def find_limit(error: str, lines: Sequence[str]) -> CodeLimit | None:
    """The limit that ended a part of the code, if the error is one of time."""
    if not re.search(r"Time[d ]?-?[Oo]ut", error):
        return None
    text = _code_of(lines)
    limits = read_rows(FOLDER / "code_areas.toml", "limit", CodeLimit)
    return next((limit for limit in limits if re.search(limit.pattern, text)), None)
