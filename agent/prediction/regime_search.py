"""Which two settings to switch between where the load is of two kinds, by the performance model.

Only limits that change without a restart are searched. It costs seconds of CPU, so it runs in the worker
process. Pure: the same request gives the same advice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import product
from math import sqrt
from statistics import pstdev

from flettner.agent.domain.model import Bound, Outcome, Slo
from flettner.agent.domain.regimes import Regime, RegimeAdvice, RegimePlan
from flettner.agent.machine.earlier_outcomes import why_not_again
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.model_search import gain_band, out_of_bounds
from flettner.agent.prediction.served_load import goals_of
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.load_mixes import TwoMixes
from flettner.performance_model.outcome import Goals, attainment
from flettner.performance_model.prediction import predict
from flettner.performance_model.replayed_scheduler import EngineRun, ReplayedScheduler
from flettner.performance_model.search import ERRORS, LAWS, paired_gain
from flettner.performance_model.step_law import StepLaw, UncertainLaw
from flettner.performance_model.trace import Trace
from flettner.vllm_facts.values import Knob, Setting, Value

CAPS: Sequence[Knob] = ("max_num_active_seqs", "max_num_seqs")  # the first that a server can change
BUDGETS: Sequence[Knob] = ("max_num_scheduled_tokens", "max_num_batched_tokens")
OCTAVES = range(-4, 5)  # around the present value
LEVEL = 0.01  # of a load's requests: settings that differ by less are equally good
LEAST_GAIN = 0.05  # of the good requests: each switch is a trial, and something to know about
LEAST_COLD_GAIN = 0.15  # where each switch starts servers, and half an hour of it has the wrong setting
COLD_CHANGES = 2.5  # a day at most, on average: those of one turn of both loads
DRAWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeRequest:
    """`below`, `above`: the load of each kind. `hot`: the range of each limit that running servers change."""

    learned: LearnedModel
    slo: Slo
    at: datetime
    mixes: TwoMixes
    below: Trace
    above: Trace
    hot: Mapping[Knob, tuple[float, float]]
    bounds: Mapping[Knob, Bound] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    cold: bool = False  # no limit is hot: `hot` is what may be changed by starting servers

    @property
    def least_gain(self) -> float:
        return LEAST_COLD_GAIN if self.cold else LEAST_GAIN


@dataclass(frozen=True, slots=True)
class _Load:
    """One kind of load, and its share of the requests."""

    trace: Trace
    share: float

    def run(self, law: StepLaw, limits: EngineLimits) -> EngineRun:
        return ReplayedScheduler(self.trace, law, limits).run()


def search_regimes(request: RegimeRequest) -> RegimeAdvice | None:
    """None where nothing is certainly gained, or nothing can be said: no accepted law, no objective."""
    learned = request.learned
    goals = goals_of(request.slo, learned.outside_s)
    if learned.law is None or goals is None or (request.cold and request.mixes.changes_a_day > COLD_CHANGES):
        return None
    try:
        present = learned.limits()
    except PredictionInputError:
        return None
    share, settings = request.mixes.above_share, list_settings(request, present)
    loads = (_Load(request.below, 1 - share), _Load(request.above, share))
    shares = [
        [attainment(load.run(learned.law.law, with_values(present, setting)), goals) for setting in settings]
        for load in loads
    ]
    both = [
        sum(load.share * row[place] for load, row in zip(loads, shares, strict=True))
        for place in range(len(settings))
    ]
    single = settings[_choose(settings, both)]
    best = [settings[_choose(settings, row)] for row in shares]
    values = [_with_present(setting, best, learned.config.setting, present) for setting in best]
    attained = sum(load.share * max(row) for load, row in zip(loads, shares, strict=True))
    gain, noise = _gain_of(loads, learned.law, goals, present, single=single, best=best)
    if values[0] == values[1] or gain <= max(request.least_gain * max(both), ERRORS * noise):
        return None
    below, above = (
        Regime(values=to, missed=_most_missed(load, learned.law, with_values(present, setting), goals))
        for to, load, setting in zip(values, loads, best, strict=True)
    )
    mixes = request.mixes
    return RegimeAdvice(
        made_at=request.at,
        setting=learned.config.setting,
        mixes=mixes,
        plan=RegimePlan(
            metric=mixes.metric, low=mixes.low, high=mixes.high, below=below, above=above, cold=request.cold
        ),
        single=single,
        single_attainment=max(both),
        attainment=attained,
        assumed={
            knob: _value_of(present, knob) for knob in values[0] if learned.config.setting.get(knob) is None
        },
        gain=gain_band(gain, noise),
        tried=len(settings),
    )


def list_settings(request: RegimeRequest, present: EngineLimits) -> list[Setting]:
    """The values to try, none first: those within the operator's bounds that no rollout has refuted."""
    cap, budget = (next((knob for knob in of if knob in request.hot), None) for of in (CAPS, BUDGETS))
    knobs = [knob for knob in (cap, budget) if knob is not None]
    near = [[None, *_values_near(request, present, knob)] for knob in knobs]
    settings = [
        {knob: value for knob, value in zip(knobs, values, strict=True) if value is not None}
        for values in product(*near)
    ]
    return [
        setting
        for setting in settings
        if not why_not_again(request.outcomes, setting, request.at)
        and _is_sound(with_values(present, setting))
    ]


def with_values(present: EngineLimits, values: Setting) -> EngineLimits:
    """The KV cache stays as the server has allocated it."""
    return replace(present, **values)  # type: ignore[arg-type]  # numbers under the names of its fields


def _values_near(request: RegimeRequest, present: EngineLimits, knob: Knob) -> list[int]:
    now, (low, high) = _value_of(present, knob), request.hot[knob]
    powers = (1 << max(0, now.bit_length() - 1 + step) for step in OCTAVES)
    wanted = sorted({*powers, int(high)} - {now})
    bound = request.bounds.get(knob, Bound())
    return [
        number for number in wanted if low <= number <= high and not out_of_bounds(knob, number, now, bound)
    ]


def _value_of(limits: EngineLimits, knob: Knob) -> int:
    """The number in force; of a limit that no flag sets, that of the other one, which bounds it."""
    value = getattr(limits, knob)
    if value is not None:
        return int(value)
    return limits.sequences if knob in CAPS else limits.budget


def _is_sound(limits: EngineLimits) -> bool:
    return limits.budget >= limits.sequences


def _choose(settings: Sequence[Setting], shares: Sequence[float]) -> int:
    """Of those as good as the best, the one that changes the fewest knobs."""
    level = [place for place, share in enumerate(shares) if share >= max(shares) - LEVEL]
    return min(level, key=lambda place: (len(settings[place]), -shares[place]))


def _with_present(
    setting: Setting, best: Sequence[Setting], in_force: Setting, present: EngineLimits
) -> Setting:
    """With a value for each knob that either regime changes."""
    knobs = sorted({knob for values in best for knob in values})

    def value(knob: Knob) -> Value:
        now = in_force.get(knob)
        return setting.get(knob, _value_of(present, knob) if now is None else now)

    return {knob: value(knob) for knob in knobs}


def _gain_of(
    loads: Sequence[_Load],
    law: UncertainLaw,
    goals: Goals,
    present: EngineLimits,
    *,
    single: Setting,
    best: Sequence[Setting],
) -> tuple[float, float]:
    """The gain of a setting for each load over the best single one, with its standard error.

    The error is that of the loads, by pairs of requests, and of the law, by its draws.
    """

    def gains(drawn: StepLaw) -> list[tuple[float, float]]:
        limits = with_values(present, single)
        return [
            paired_gain(load.run(drawn, limits), load.run(drawn, with_values(present, setting)), goals)
            if dict(setting) != dict(single)
            else (0.0, 0.0)
            for load, setting in zip(loads, best, strict=True)
        ]

    def total(pairs: Sequence[tuple[float, float]]) -> float:
        return sum(load.share * gain for load, (gain, _) in zip(loads, pairs, strict=True))

    pairs = gains(law.law)
    by_law = [total(gains(drawn)) for drawn in law.draws[:LAWS]] or [0.0]
    errors = (load.share * noise for load, (_, noise) in zip(loads, pairs, strict=True))
    return total(pairs), sqrt(sum(error**2 for error in errors) + pstdev(by_law) ** 2)


def _most_missed(load: _Load, law: UncertainLaw, limits: EngineLimits, goals: Goals) -> float:
    return 1 - predict(load.trace, law, limits, goals, replicates=DRAWS)["attainment"].low
