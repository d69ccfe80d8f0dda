"""The shape of one flag's facts."""

import re
from dataclasses import dataclass
from typing import Literal

from agent.model import ChangeClass, Knob, Value

Direction = Literal["+", "-", "±", ""]
"""Of the quantity itself, not of its worth: ttft "-" is a shorter wait, oom "+" a higher risk.

"±": either way, by load and model. "": none, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What raising the value does; where 0 or none is off, or of a switch: turning it on."""

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
    """What vLLM takes when the flag is not given, from a release and on a kind of hardware."""

    value: Value
    since: str | None = None
    memory_gib: float = 0.0  # on cards of at least this
    unlike: str = ""  # but not where the card's name has this in it


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFacts:
    """One flag of `vllm serve`.

    `since` and `removed`: first minor release with, first without it; None: as long as 0.11 to 0.33 go.
    """

    name: Knob
    type: Literal["int", "float", "bool", "choice", "text", "list", "json"]
    meaning: str
    default: str  # in words: many defaults depend on the GPU and the model
    start: Literal["warm", "cold"]
    klass: ChangeClass
    unit: str = ""
    min: float | None = None  # what vLLM accepts, not what is wise
    max: float | None = None
    choices: tuple[Value, ...] = ()  # of vLLM 0.32
    octaves: bool = False  # moves in doublings, so that compiled values are met again
    defaults: tuple[Default, ...] = ()  # the same for programs, the first that fits; empty: not that simple
    effects: Effects = Effects()
    needs: tuple[str, ...] = ()  # what must hold beside it
    since: str | None = None
    removed: str | None = None
    today: str = ""  # what an older guide does not know: what replaces it, or what it means by now
    source: str = "vLLM 0.32 config/scheduler.py"

    def in_version(self, version: str | None) -> bool | None:
        """Whether that vLLM has the flag; None when the version says nothing that can be read."""
        release = release_of(version)
        if release is None:
            return None
        since, removed = release_of(self.since), release_of(self.removed)
        return (since is None or release >= since) and (removed is None or release < removed)

    def default_in(
        self, version: str | None = None, *, memory_gib: float | None = None, card: str = ""
    ) -> Value:
        """The default there. None: vLLM decides by more than this, or it is not known."""
        release = release_of(version)
        for default in self.defaults:
            since = release_of(default.since)
            if since and (release is None or release < since):
                continue
            if default.memory_gib and (memory_gib is None or memory_gib < default.memory_gib):
                continue
            if not (default.unlike and default.unlike in card.lower()):
                return default.value
        return None

    def misfit(self, value: Value) -> str:
        """Why vLLM would not take the value; empty where it would, or where that is not known."""
        if value is None:
            return ""
        if self.type == "bool":
            return "" if isinstance(value, bool) else "is on or off"
        if self.type == "choice":
            return "" if value in self.choices else f"is one of {', '.join(map(str, self.choices))}"
        if self.type not in {"int", "float"} or value in self.choices:
            return ""
        if isinstance(value, bool) or not isinstance(value, int if self.type == "int" else int | float):
            return "is a whole number" if self.type == "int" else "is a number"
        if self.min is not None and value < self.min:
            return f"is at least {self.min:g}"
        if self.max is not None and value > self.max:
            return f"is at most {self.max:g}"
        return ""


def release_of(version: str | None) -> tuple[int, int] | None:
    """(0, 32) of "0.32.0", "v0.32.1rc2+cpu"; None of anything else."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", version or "")
    return (int(found[1]), int(found[2])) if found else None
