"""A measured law on another card or in another layout: times the ratio of the data sheets of both."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp
from random import Random

from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.step_law import COEFFICIENTS, StepLaw, UncertainLaw, with_launch
from flettner.vllm_facts.serve_config import ServeConfig

ERROR = 0.15  # sigma of a coefficient's ratio: data sheets say times usually within 15 %


def move_law(measured: UncertainLaw, before: ServeConfig, after: ServeConfig) -> UncertainLaw:
    """The law of `before` as that of `after`. What the data sheet does not have stays: the host, the kernels.

    Raises PredictionInputError if the model or a GPU is unknown, or the layout is not modelled.
    """
    ratios = _ratios(prior_law(before).law, prior_law(after).law)
    random = Random("moved")  # noqa: S311 - statistics, not cryptography
    draws = []
    for draw in measured.draws or (measured.law,):
        common = exp(random.gauss(0.0, ERROR))
        draws.append(_times(draw.scaled(common), ratios))
    return replace(measured, law=_times(measured.law, ratios), draws=tuple(draws))


def _ratios(before: StepLaw, after: StepLaw) -> Mapping[str, float]:
    """By coefficient; 1 where the data sheet has none."""
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in ("knee", *COEFFICIENTS)}
    return {name: then / now if now > 0 else 1.0 for name, (now, then) in pairs.items()}


def _times(law: StepLaw, ratios: Mapping[str, float]) -> StepLaw:
    """Launching the kernels of a large step takes the host as long as before."""
    launch_us = law.step_us + law.token_us * (law.launch_tokens - law.knee) if law.launch_tokens else 0.0
    moved = replace(
        law, launch_tokens=0.0, **{name: getattr(law, name) * ratio for name, ratio in ratios.items()}
    )
    return with_launch(moved, launch_us) if launch_us else moved
