"""What the performance model says of a target: predicted numbers of settings, with bands.

The names of the numbers are those of performance_model.outcome.measure: `attainment` is the share of requests
within all objectives of the SLO, `ttft_p90_s` the 90 % quantile of TTFT in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from flettner.performance_model.band import Band
from flettner.vllm_facts.values import Knob, Setting, Value

MOST_TIMES = 64.0
"""The largest factor of rate or prompt length that a prediction takes; its inverse is the smallest."""

Numbers = Mapping[str, Band]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """A change of the setting in force. `gain`: of the share of requests within the objectives."""

    to: Mapping[Knob, Value]
    gain: Band
    rule: str = ""  # that suggests it; empty: the model found it
    then: Numbers = field(default_factory=dict)  # with the change of a rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much load a setting carries within the objectives.

    `rate_rps`: requests per second, None if not even a small part of the load; `servers`: the least number of
    servers with this setting that carry the present load, None if more would not help.
    """

    rate_rps: float | None
    servers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSearchResult:
    """The best change that the model found for the recorded load, or None and why nothing."""

    made_at: datetime
    setting: Setting  # in force, for which it was made
    rate_rps: float  # of the recorded load
    requests: int  # of it
    law_source: str
    itl_error: float  # of the law on traffic that it had not seen, relative, mean of its windows
    ttft_error: float
    wanted: float  # share of the requests that shall meet the objectives
    present: Numbers
    best: PredictedChange | None = None
    assumed: Mapping[Knob, Value] = field(default_factory=dict)  # present values of knobs that no flag sets
    then: Numbers = field(default_factory=dict)  # with the best change
    extrapolation: str = ""  # how far the best change is from the steps of the fit; empty: near
    why_nothing: str = ""
    capacity: Capacity
    best_capacity: Capacity | None = None  # with the best change
    tried: int = 0  # settings
    rules: tuple[PredictedChange, ...] = ()  # what open suggestions of rules would gain

    def numbers_with(self, to: Mapping[Knob, Value]) -> Numbers | None:
        """What is predicted with this change; None if it was not."""
        if self.best is not None and dict(self.best.to) == dict(to):
            return self.then
        return next((rule.then for rule in self.rules if dict(rule.to) == dict(to)), None)

    @property
    def reaches_goal(self) -> bool:
        """Whether the best known setting of one server meets the objectives."""
        return max(self.present["attainment"].value, *self._after) >= self.wanted

    @property
    def _after(self) -> tuple[float, ...]:
        return (self.then["attainment"].value,) if self.then else (0.0,)

    @property
    def servers(self) -> int | None:
        """The least number of servers that carry the load with the best known setting."""
        return (self.best_capacity or self.capacity).servers
