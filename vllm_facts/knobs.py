"""The catalogue of knobs: what each vLLM flag means, where it may go, since when, and what a change costs.

Facts of vLLM 0.11 to 0.33, from its own sources. A server that can be asked knows better (see preflight).
A knob whose value is not part of the compile-cache key starts warm; a cold one compiles once per new value.
"""

from collections.abc import Iterator
from dataclasses import replace

from vllm_facts.catalogue import (
    cache,
    compilation,
    experts,
    lora,
    mamba,
    model,
    multimodal,
    offloading,
    parallel,
    scheduler,
    serving,
    speculative,
)
from vllm_facts.catalogue.facts import Default, Effects, KnobFacts, release_of
from vllm_facts.catalogue.parser import FLAGS
from vllm_facts.catalogue.tunable import TUNABLE
from vllm_facts.deprecated_flags import CHANGED, RENAMED
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

_PARTS = (
    scheduler,
    cache,
    offloading,
    parallel,
    experts,
    compilation,
    speculative,
    model,
    mamba,
    lora,
    multimodal,
    serving,
)


def _all() -> Iterator[KnobFacts]:
    for part in _PARTS:
        for facts in part.FACTS:
            replaced = RENAMED.get(facts.name)
            today = replaced.how if replaced else CHANGED.get(facts.name, "")
            yield replace(facts, today=today or facts.today, tunable=facts.name in TUNABLE)


KNOBS: dict[Knob, KnobFacts] = {facts.name: facts for facts in _all()}


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
