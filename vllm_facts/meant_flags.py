"""Flags that no release of vLLM has: which flag is meant, by a table and by spelling.

A misspelling is a letter or two in a word that no flag has. Another word is another meaning: a
`--max-batch-size` is no misspelled `--ubatch-size`. Read only for command lines with such a flag.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from itertools import zip_longest

from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.fact_tables import FOLDER, read_tables
from flettner.vllm_facts.flag_table import is_switch
from flettner.vllm_facts.knobs import FLAGS, KNOBS
from flettner.vllm_facts.releases.history import read_history
from flettner.vllm_facts.values import Knob, Value

_NEAREST = 3
_LEAST_LIKENESS = 0.6
_LONG_WORD = 7  # letters from which a word may have two wrong ones
_ON = frozenset({"true", "1", "yes", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeantFlag:
    """`by`: the flag that is meant, dotted for a part of JSON. `to`: its value, if not the given one."""

    by: Knob
    to: Mapping[Knob, Value] = field(default_factory=dict)
    by_hand: bool = False  # the value cannot be converted
    needless: bool = False  # vLLM does it by itself
    how: str = ""  # a sentence for the user

    def change(self, value: Value) -> Mapping[Knob, Value] | None:
        """The equivalent flags; None if the user has to write them."""
        if self.needless:
            return {}
        if self.by_hand or value is False or (not self.to and value is True and not is_switch(self.by)):
            return None
        return self.to or {self.by: value}


@cache
def meant_flags() -> Mapping[Knob, MeantFlag]:
    """By the canonical name of the unknown flag."""
    return read_tables(FOLDER / "meant_flags.toml", MeantFlag)


@cache
def _names() -> frozenset[Knob]:
    return FLAGS | KNOBS.keys() | RENAMED.keys() | read_history().flags.keys()


@cache
def _words() -> frozenset[str]:
    """The words that names of flags are made of."""
    return frozenset(word for name in (*_names(), *meant_flags()) for word in name.split("_"))


def find_misspelled(name: str) -> Knob | None:
    """The flag that the name misspells; None if there is none, or several."""
    near = [known for known in (*_names(), *meant_flags()) if _is_misspelling(name.lower(), known)]
    return near[0] if len(near) == 1 else None


def find_nearest(name: str, flags: Iterable[Knob]) -> list[Knob]:
    """The flags whose names are most like it, the most alike first."""
    ranked = sorted(((_likeness(name, flag), flag) for flag in flags), reverse=True)
    return [flag for likeness, flag in ranked[:_NEAREST] if likeness >= _LEAST_LIKENESS]


def _is_misspelling(name: str, flag: Knob) -> bool:
    if name.replace("_", "") == flag.replace("_", ""):
        return True
    pairs = list(zip_longest(name.split("_"), flag.split("_"), fillvalue=""))
    return all(given == word or _is_misspelled_word(given, word) for given, word in pairs)


def _is_misspelled_word(given: str, word: str) -> bool:
    if given.rstrip("s") == word.rstrip("s") and given:
        return True
    if min(len(given), len(word)) <= 2 or given in _words():  # noqa: PLR2004 - too short to tell
        return False
    return _distance(given, word) <= (2 if len(word) >= _LONG_WORD else 1)


def _distance(first: str, second: str) -> int:
    """Letters to add, drop, replace or swap with their neighbour."""
    before, last = list[int](), list(range(len(second) + 1))
    for at, letter in enumerate(first, 1):
        row = [at]
        for place, other in enumerate(second, 1):
            cost = min(last[place] + 1, row[-1] + 1, last[place - 1] + (letter != other))
            if at > 1 and place > 1 and letter == second[place - 2] and first[at - 2] == other:
                cost = min(cost, before[place - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def _likeness(name: str, flag: Knob) -> float:
    """From 0 to 1, by shared words and by letters."""
    given, words = set(name.split("_")), set(flag.split("_"))
    shared = 2 * len(given & words) / (len(given) + len(words))
    return max(shared, SequenceMatcher(a=name, b=flag).ratio() - 0.1)


def as_switch(value: Value) -> Value:
    """True for the text `true` after a flag that takes no value."""
    return True if isinstance(value, str | int) and str(value).lower() in _ON else value
