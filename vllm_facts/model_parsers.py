"""Which parsers of tool calls and of reasoning read a model's answers."""

import re
from dataclasses import dataclass

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.releases.history import values_in
from flettner.vllm_facts.values import Knob

TOOLS, REASONING = "tool_call_parser", "reasoning_parser"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserFamily:
    """The parsers of the models whose lower-case name has `model`, the recommended first."""

    model: str
    tools: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    until: str = ""  # the last release in which `reasoning` holds; empty: all
    why: str = ""  # the other parsers fail
    thinks: str = ""  # the parser to add if none is given: the models reason unless a request says no

    def parsers(self, knob: Knob, version: str) -> tuple[str, ...]:
        """Those of the release; () if the family is not judged there."""
        bound, present = release_of(self.until), release_of(version)
        if knob == REASONING and bound is not None and (present is None or present > bound):
            return ()
        names, known = self.tools if knob == TOOLS else self.reasoning, values_in(knob, version)
        return tuple(name for name in names if not known or name in known)


def find_family(model: str) -> ParserFamily | None:
    """The family of the model by its name or path."""
    families = read_rows(FOLDER / "model_parsers.toml", "family", ParserFamily)
    return next((row for row in families if re.search(row.model, model.lower())), None)
