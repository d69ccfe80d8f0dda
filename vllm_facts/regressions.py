"""Known performance regressions and defects of vLLM: the affected releases, the symptom and the remedy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.values import Knob, Setting, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A reported regression. `first` and `last` are the first and last release in the reports.

    `model` and `card` are patterns that are searched in lower-case names; empty matches any. `value` is a
    pattern for the full value of `knob` or of the variable `env`; without both it applies to any flags.
    """

    issue: str
    first: str
    last: str
    symptom: str
    remedy: str
    model: str = ""
    card: str = ""
    seen_on: str = ""  # the GPUs of the reports: another that is known counts as not affected
    knob: str = ""
    env: str = ""
    value: str = ".+"
    together: str = ""  # another knob that must be on
    unset: str = ""  # a knob that vLLM must choose: given (and not "auto"), it applies no more
    to: Mapping[Knob, Value] = field(default_factory=dict)  # flags that were measured to avoid it
    experts: bool = False  # it affects mixtures of experts only
    dense: bool = False  # it affects other models only
    more_than: int = 0  # requests at once up to which it does not show
    unquantized: bool = False  # it affects weights in 16 bit only
    fixed: str = ""  # in which release; empty: no fix is on record
    since: str = ""  # the first patch release with it, where the one of `first` does not have it
    until: str = ""  # the first patch release without it, if known
    line: str = ""  # a pattern: what the log shows of it
    at_start: bool = False  # it keeps a server from starting: a log that got further refutes it
    answers: bool = False  # it spoils answers, which no log tells
    remark: bool = False  # it costs some servers little or nothing: no reason to change before others

    def seen_in(self, release: tuple[int, int], patch: tuple[int, int, int] | None) -> bool:
        fixed = bool(self.until) and patch is not None and patch >= tuple(map(int, self.until.split(".")))
        before = bool(self.since) and patch is not None and patch < tuple(map(int, self.since.split(".")))
        first, last = release_of(self.first), release_of(self.last)
        return first is not None and last is not None and first <= release <= last and not (fixed or before)

    def shows(self, value: Value) -> bool:
        """True if the regression occurs with this value of its knob or variable."""
        given = value is not None and re.fullmatch(self.value, str(value).lower()) is not None
        return given or not (self.knob or self.env)

    def is_chosen(self, setting: Setting) -> bool:
        """Whether the flags choose what vLLM must choose, or lack the other knob that must be on."""
        given = any(
            knob.partition(".")[0] == self.unset and value not in (None, "auto")
            for knob, value in setting.items()
        )
        lone = bool(self.together) and str(setting.get(self.together)) in {"None", "False", "1", ""}
        return given or lone

    def fits(self, model: str, card: str, *, experts: bool | None) -> bool:
        """True if the regression affects this model and GPU; an unknown name ("") matches no pattern.

        `experts`: whether the model is a mixture of experts; None if that is not known.
        """
        elsewhere = self.seen_on and card and not re.search(self.seen_on, card.lower())
        if elsewhere or (self.experts and not experts) or (self.dense and experts is not False):
            return False
        patterns = ((self.model, model), (self.card, card))
        return all(not pattern or re.search(pattern, name.lower()) for pattern, name in patterns)


REGRESSIONS = read_rows(FOLDER / "regressions.toml", "regression", Regression)
