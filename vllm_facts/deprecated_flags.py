"""Names in command lines that today's vLLM does not know: removed flags and variables.

vLLM refuses to start with a removed flag and ignores a removed variable silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.fact_tables import FOLDER, read_tables
from flettner.vllm_facts.values import Knob, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeprecatedFlag:
    """The replacement of a removed flag or variable."""

    since: str  # the first known release without the old name
    how: str  # a sentence for the user
    by: str = ""  # a current knob, dotted for a part of one; empty: no replacement is needed
    carries: bool = False  # the old value is passed to `by` unchanged
    to: Mapping[str, Value] = field(default_factory=dict)  # else these values replace it
    by_value: Mapping[str, Mapping[str, Value]] = field(
        default_factory=dict
    )  # else the replacement of each old value
    switch: bool = False  # it took no value
    by_hand: bool = False  # the value cannot be converted: the user must rewrite it
    needless: bool = False  # without it vLLM does the same

    def gone(self, version: str | None) -> bool | None:
        """Whether that release lacks the old name; None for an unreadable version."""
        release, since = release_of(version), release_of(self.since)
        return None if release is None or since is None else release >= since

    def changes(self, old: Knob, value: Value) -> dict[Knob, Value]:
        """The equivalent edit today: removal of the old flag, and its replacement; empty if `by_hand`."""
        if self.by_hand:
            return {}
        new: dict[Knob, Value] = {self.by: value} if self.carries else {}
        replaced = self.by_value.get(value, {}) if isinstance(value, str) else {}
        return {old: None, **new, **(self.to if value is not False else {}), **replaced}


RENAMED = read_tables(FOLDER / "deprecated_flags.toml", DeprecatedFlag)
"""By the old flag's canonical name."""

ENVIRONMENT = read_tables(FOLDER / "deprecated_variables.toml", DeprecatedFlag)
"""Environment variables. Flags replace them, so `changes` does not apply."""
