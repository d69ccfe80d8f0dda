"""The facts about one flag, as values."""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from flettner.vllm_facts.values import ChangeClass, Knob, Value

Direction = Literal["+", "-", "±", ""]
"""The direction of the quantity, not of its worth: ttft "-" is a shorter wait, oom "+" a higher risk.

"±": either, depending on load and model. "": none or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effect of raising the value, or of turning it on if 0, none or false is off."""

    ttft: Direction = ""
    itl: Direction = ""
    throughput: Direction = ""
    kv: Direction = ""  # tokens that the KV cache holds
    oom: Direction = ""  # risk of running out of GPU memory
    quality: Direction = ""  # of the answers

    def __str__(self) -> str:
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return ", ".join(f"{name} {direction}" for name, direction in pairs if direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """vLLM's default from a release on, on a kind of hardware."""

    value: Value
    since: str | None = None
    memory_gib: float = 0.0  # on GPUs with at least this memory
    unlike: str = ""  # except on GPUs with this in their name


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFacts:
    """One flag of `vllm serve`.

    `since` and `removed`: the first minor release with and without the flag; None: before 0.11, or none yet.
    """

    name: Knob
    type: Literal["int", "float", "bool", "choice", "text", "list", "json"]
    meaning: str
    default: str  # in words, as many defaults depend on the GPU and the model
    start: Literal["warm", "cold"]
    klass: ChangeClass
    tunable: bool = False  # whether flettner may change it, see reader.py
    items: Literal["int", "text"] = "text"  # of a list
    unit: str = ""
    min: float | None = None  # what vLLM accepts, not a recommendation
    max: float | None = None
    least: float | None = (
        None  # with `most`: what can make sense on a host of today, narrower than min and max
    )
    most: float | None = None
    choices: tuple[Value, ...] = ()  # of the newest release in vllm_facts/releases
    octaves: bool = False  # moves in doublings, so that compiled values recur
    defaults: tuple[Default, ...] = ()  # machine-readable, the first match; empty: depends on more
    effects: Effects = Effects()
    needs: tuple[str, ...] = ()  # preconditions
    since: str | None = None
    removed: str | None = None
    today: str = ""  # its replacement or changed meaning since older guides
    source: str = ""

    def in_version(self, version: str | None) -> bool | None:
        """Whether that release has the flag; None for an unreadable version."""
        release = release_of(version)
        if release is None:
            return None
        since, removed = release_of(self.since), release_of(self.removed)
        return (since is None or release >= since) and (removed is None or release < removed)

    def default_in(
        self, version: str | None = None, *, memory_gib: float | None = None, card: str = ""
    ) -> Value:
        """The default in that release; None if unknown or if it depends on more than the arguments.

        An unknown version counts as the newest.
        """
        release = release_of(version)
        for default in self.defaults:
            since = release_of(default.since)
            if since and release is not None and release < since:
                continue
            if default.memory_gib and (memory_gib is None or memory_gib < default.memory_gib):
                continue
            if not (default.unlike and default.unlike in card.lower()):
                return default.value
        return None

    def misfit(self, value: Value) -> str:
        """Why vLLM would refuse the value; "" if it would not, or if that is unknown.

        None, the removal of the flag, is always accepted.
        """
        if value is None or (self.choices and _one_of(value, self.choices)):
            return ""
        match self.type:
            case "bool":
                return "" if isinstance(value, bool) else "is on or off"
            case "choice":
                return f"is one of {', '.join(map(str, self.choices))}"
            case "int" | "float":
                return self._misfit_of_number(value)
            case "list" if self.items == "int":
                return self._misfit_of_list(value)
            case _:
                return ""

    def beyond_sense(self, value: Value) -> str:
        """Why no host of today can use the number; "" if one can, or if it is no number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or _one_of(value, self.choices):
            return ""
        if self.most is not None and value > self.most:
            return f"at most {self.most:,.10g}"
        if self.least is not None and value < self.least:
            return f"at least {self.least:,.10g}"
        return ""

    def _misfit_of_number(self, value: Value) -> str:
        if isinstance(value, bool) or not isinstance(value, int if self.type == "int" else int | float):
            return "is a whole number" if self.type == "int" else "is a number"
        if not math.isfinite(value):
            return "is a finite number"
        if self.min is not None and value < self.min:
            return f"is at least {self.min:g}"
        if self.max is not None and value > self.max:
            return f"is at most {self.max:g}"
        return ""

    def _misfit_of_list(self, value: Value) -> str:
        """One integer, or several in a text with spaces between them, as `flags` parses them."""
        words = value.split(" ") if isinstance(value, str) else [str(value)]
        if isinstance(value, bool) or not all(re.fullmatch(r"[0-9]{1,9}", word) for word in words):
            return "is whole numbers with a space between two"
        if self.min is not None and any(int(word) < self.min for word in words):
            return f"is whole numbers of at least {self.min:g}"
        return ""


def _one_of(value: Value, choices: tuple[Value, ...]) -> bool:
    """True if the value is a choice; True is not 1."""
    return any(value == choice and isinstance(value, bool) is isinstance(choice, bool) for choice in choices)


@lru_cache(maxsize=1024)  # a daemon asks of a few versions, some times a second
def release_of(version: str | None) -> tuple[int, int] | None:
    """(0, 32) of "0.32.0", "v0.32.1rc2+cpu"; None of anything else."""
    release = re.match(r"v?(\d{1,4})\.(\d{1,4})", version or "")
    return (int(release[1]), int(release[2])) if release else None
