"""The catalogue of knobs: what each vLLM flag means, where it may go, since when, and what a change costs.

Facts of vLLM 0.11 to 0.33, from its own sources. A server that can be asked knows better (see preflight).
A knob whose value is not part of the compile-cache key starts warm; a cold one compiles once per new value.
"""

from vllm_facts.catalogue.facts import Default, Effects, KnobFacts, release_of
from vllm_facts.catalogue.reader import read_catalogue
from vllm_facts.releases import FLAGS
from vllm_facts.values import Knob, Value

__all__ = [
    "FLAGS",
    "KNOBS",
    "Default",
    "Effects",
    "KnobFacts",
    "alters_outputs",
    "misfit",
    "release_of",
    "tunable",
]

KNOBS: dict[Knob, KnobFacts] = {facts.name: facts for facts in read_catalogue()}


def alters_outputs(knob: Knob) -> bool:
    """Whether another value may change what is answered beyond rounding; a knob that is not here may."""
    facts = KNOBS.get(knob)
    return facts is None or bool(facts.effects.quality)


def tunable(knob: Knob) -> bool:
    """Whether trimtab may change it; what is not here it may not."""
    facts = KNOBS.get(knob)
    return facts is not None and facts.tunable


def misfit(knob: Knob, value: Value) -> str:
    """Why vLLM would not take the value; empty where that is not known."""
    facts = KNOBS.get(knob)
    return "" if facts is None else facts.misfit(value)
