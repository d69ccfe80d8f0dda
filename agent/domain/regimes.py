"""Regimes: two kinds of load that take turns, each with the setting that is better for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from flettner.performance_model.band import Band
from flettner.performance_model.load_mixes import Metric, TwoMixes
from flettner.vllm_facts.values import Setting, describe_changes

LASTS_S = 300  # the load is of the other regime for so long before a switch
MOST_SWITCHES = 6  # a day: two or three turns of both regimes
COLD_LASTS_S, MOST_COLD_SWITCHES = 900, 2
"""The same where a switch starts servers: one turn of both regimes a day."""
WORDS: Mapping[Metric, str] = {"prompt_tokens": "prompts", "answer_tokens": "answers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """`values`: of the knobs in which the two differ. `missed`: the share of the requests that miss an
    objective under its own load, at most, as predicted: the upper end of the band."""

    values: Setting
    missed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimePlan:
    """`above` holds once the metric is above `high`, until it is below `low`; `below` holds otherwise.

    `cold`: no server takes the values while it runs, so each switch is a rollout that starts servers.
    """

    metric: Metric
    low: float  # tokens, mean of the requests
    high: float
    below: Regime
    above: Regime
    cold: bool = False

    @property
    def lasts_s(self) -> int:
        """Seconds that the load is of the other regime before a switch."""
        return COLD_LASTS_S if self.cold else LASTS_S

    @property
    def most_switches(self) -> int:
        """Of a day."""
        return MOST_COLD_SWITCHES if self.cold else MOST_SWITCHES

    def regime(self, *, above: bool) -> Regime:
        return self.above if above else self.below


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeAdvice:
    """What switching gains over the best single setting, in shares of the requests of the recorded days."""

    made_at: datetime
    setting: Setting  # in force, for which it was made
    mixes: TwoMixes
    plan: RegimePlan
    single: Setting  # the best values for both loads; empty: those in force
    single_attainment: float  # with them
    attainment: float  # with a setting for each load
    assumed: Setting  # present values of knobs that no flag sets
    gain: Band
    tried: int  # settings


def describe_trigger(plan: RegimePlan) -> str:
    """The two settings, and when each holds."""
    what = WORDS[plan.metric]
    return (
        f"{describe_changes(plan.above.values)} once {what} are longer than {plan.high:.0f} tokens for "
        f"{plan.lasts_s // 60} minutes, {describe_changes(plan.below.values)} once shorter than "
        f"{plan.low:.0f}"
    )
