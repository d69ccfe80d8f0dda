"""The catalogue of knobs: meaning, range, releases and cost of a change of each vLLM flag.

The facts are from vLLM's sources. The preflight check asks the installed vLLM itself. A change of a
knob whose value is not part of the compile-cache key starts warm; a cold one compiles once per new value.
"""

from flettner.vllm_facts.catalogue.facts import Default, Effects, KnobFacts, release_of
from flettner.vllm_facts.catalogue.reader import read_catalogue
from flettner.vllm_facts.releases import FLAGS
from flettner.vllm_facts.values import Knob, Value

__all__ = [
    "FLAGS",
    "KNOBS",
    "Default",
    "Effects",
    "KnobFacts",
    "alters_outputs",
    "beyond_sense",
    "find_default_number",
    "misfit",
    "release_of",
    "tunable",
]

KNOBS: dict[Knob, KnobFacts] = {facts.name: facts for facts in read_catalogue()}


def alters_outputs(knob: Knob) -> bool:
    """Whether another value may change the answers beyond rounding; true for an unknown knob."""
    facts = KNOBS.get(knob)
    return facts is None or bool(facts.effects.quality)


def find_default_number(
    knob: Knob, version: str | None, *, memory_gib: float | None = None, card: str = ""
) -> float | None:
    """The default of vLLM on this GPU; None if it is unknown or no number. An unknown version: the newest."""
    default = KNOBS[knob].default_in(version, memory_gib=memory_gib, card=card)
    return default if isinstance(default, int | float) and not isinstance(default, bool) else None


def tunable(knob: Knob) -> bool:
    """Whether flettner may change the knob; false for an unknown knob."""
    facts = KNOBS.get(knob)
    return facts is not None and facts.tunable


def beyond_sense(knob: Knob, value: Value) -> str:
    """Which limit of the catalogue the value exceeds, as "at most 16"; "" if none."""
    facts = KNOBS.get(knob)
    return "" if facts is None else facts.beyond_sense(value)


def misfit(knob: Knob, value: Value) -> str:
    """Why vLLM would refuse the value; "" if it would not, or for an unknown knob."""
    facts = KNOBS.get(knob)
    return "" if facts is None else facts.misfit(value)
