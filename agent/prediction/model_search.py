"""What to change, by the performance model: the best joint change inside the operator's bounds, or nothing.

It costs seconds of CPU, so it runs in the worker process. Pure: the same model gives the same advice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import sqrt

from flettner.agent.domain.cost import COSTS, GpuRates
from flettner.agent.domain.model import Bound, Outcome, Slo
from flettner.agent.domain.model_search import ModelSearchResult, PredictedChange
from flettner.agent.machine.earlier_outcomes import why_not_again
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.moved_load import changes_layout, in_layout, take_share
from flettner.agent.prediction.served_load import ServedLoad, find_load
from flettner.performance_model.band import Band
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import describe_extrapolation
from flettner.performance_model.outcome import Goals, attainment
from flettner.performance_model.prediction import largest_of
from flettner.performance_model.replayed_scheduler import EngineRun, ReplayedScheduler
from flettner.performance_model.search import LEAST_GAIN, LOW_QUANTILE, SearchResult, paired_gain, search
from flettner.vllm_facts.values import Knob, Setting, Value, as_number, describe_changes

RULE_DRAWS = 4  # behind the bands of a rule's change
UNSEEN = frozenset({"enable_prefix_caching"})
"""Knobs whose effect the trace does not show: what requests share is unknown while caching is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSearchRequest:
    """`suggested`: the changes of open suggestions, by rule."""

    learned: LearnedModel
    slo: Slo
    at: datetime
    bounds: Mapping[Knob, Bound] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    suggested: tuple[tuple[str, Setting], ...] = ()
    rates: GpuRates = field(default_factory=GpuRates)


def search_settings(request: ModelSearchRequest) -> ModelSearchResult | None:
    """None where there is nothing to advise on: no accepted law, no objective, too little traffic."""
    learned = request.learned
    try:
        load = find_load(learned, request.slo, request.rates)
        if load.goals is None or learned.acceptance is None:
            return None
        result = search(
            load.config,
            load.trace,
            load.law,
            load.goals,
            kv_tokens=learned.kv_tokens,
            refuse=partial(why_refused, request, load.present),
            also=[to for _, to in request.suggested if _is_modelled(to, load.present)],
        )
    except PredictionInputError:
        return None
    best, capacity = result.best, load.capacity(load.present)
    if capacity is None:
        return None
    changes = dict(best.changes) if best else {}
    then = load.predict(best.limits) if best else {}
    return ModelSearchResult(
        made_at=request.at,
        setting=learned.config.setting,
        rate_rps=load.rate_rps,
        requests=len(load.trace),
        law_source=learned.law_source,
        itl_error=_mean_size(learned.acceptance.itl),
        ttft_error=_mean_size(learned.acceptance.ttft),
        wanted=load.goals.share,
        present=load.predict(load.present),
        best=PredictedChange(to=changes, gain=gain_band(best.gain, best.noise)) if best else None,
        assumed={
            knob: getattr(load.present, knob) for knob in changes if load.config.setting.get(knob) is None
        },
        then=then,
        extrapolation=describe_extrapolation(load.law.fitted_to, largest_of(then)) if then else "",
        why_nothing="" if best else _why_nothing(result, load.goals),
        capacity=capacity,
        best_capacity=load.capacity(best.limits) if best else None,
        tried=result.tried,
        rules=tuple(_judge_rules(load, load.goals, request.suggested)),
    )


def why_refused(request: ModelSearchRequest, base: EngineLimits, changes: Mapping[Knob, Value]) -> str:
    """Why the operator's bounds, or the outcome of an earlier rollout, forbid a change; empty: nothing."""
    for knob, value in changes.items():
        if knob in UNSEEN:
            return f"the trace does not show the effect of {knob}"
        present = request.learned.config.setting.get(knob)
        present = getattr(base, knob, None) if present is None else present
        if why := out_of_bounds(knob, value, present, request.bounds.get(knob, Bound())):
            return why
    return why_not_again(request.outcomes, changes, request.at)


def out_of_bounds(knob: Knob, value: Value, present: Value, bound: Bound) -> str:
    """Why the operator's bound does not allow the value, or the size of the step; empty: it does."""
    if present is None:
        return f"{knob} is not set and its default is unknown"
    if not bound.allows(value):
        return f"{knob} is outside of its {'allowed values' if bound.allowed else 'bounds'}"
    now, number = as_number(present), as_number(value)
    if now is not None and number is not None:
        low, high = bound.reach(now)
        if not low <= number <= high:
            return f"one change of {knob} is at most a factor of {2**bound.octaves:g}"
    return ""


def _why_nothing(result: SearchResult, goals: Goals) -> str:
    """Why no change is better, as a sentence."""
    if result.base >= 1 - LEAST_GAIN / 2:
        return f"{result.base:.1%} of the requests meet the objectives: there is nothing to gain"
    if not result.finalists:
        why = max(result.vetoed, key=lambda reason: result.vetoed[reason], default="there is none")
        return f"no setting nearby can be tried, mostly for this reason: {why}"
    first = result.finalists[0]
    few = "" if result.base + first.gain >= goals.share else ": one server is too small for the load"
    return (
        f"the best of {result.tried} settings, {describe_changes(first.changes)}, changes the share of "
        f"requests within the objectives by {100 * first.gain:+.1f} points (standard error "
        f"{100 * first.noise:.1f}){few}"
    )


def _judge_rules(
    load: ServedLoad, goals: Goals, suggested: Sequence[tuple[str, Setting]]
) -> Iterator[PredictedChange]:
    """What the changes that rules suggest would gain, without those that are not modelled."""
    run = ReplayedScheduler(load.trace, load.law.law, load.present).run() if suggested else None
    for rule, to in suggested:
        if run is None or not (_is_modelled(to, load.present) or changes_layout(to)):
            continue
        try:
            if changes_layout(to):
                yield _judge_layout(load, goals, run, rule, to)
                continue
            limits = load.limits_with(to)
            other = ReplayedScheduler(load.trace, load.law.law, limits).run()
        except PredictionInputError:
            continue
        gain, noise = paired_gain(run, other, goals)
        then = load.predict(limits, RULE_DRAWS)
        yield PredictedChange(to=dict(to), gain=gain_band(gain, noise), rule=rule, then=then)


def _judge_layout(load: ServedLoad, goals: Goals, run: EngineRun, rule: str, to: Setting) -> PredictedChange:
    """By one of its engines, with its share of the requests. Raises PredictionInputError."""
    moved = in_layout(load, to)
    part = replace(moved, trace=take_share(load.trace, load.engines, moved.engines))
    other = ReplayedScheduler(part.trace, part.law.law, part.present).run()
    now, then = attainment(run, goals), attainment(other, goals)
    noise = sqrt((now * (1 - now) + then * (1 - then)) / max(1, len(part.trace)))
    costs = {name: band for name, band in part.predict(part.present, RULE_DRAWS).items() if name in COSTS}
    return PredictedChange(to=dict(to), gain=gain_band(then - now, noise), rule=rule, then=costs)


def _is_modelled(to: Setting, present: EngineLimits) -> bool:
    return not UNSEEN & to.keys() and all(hasattr(present, knob) for knob in to)


def gain_band(gain: float, noise: float) -> Band:
    """`noise`: its standard error."""
    return Band(value=gain, low=gain - LOW_QUANTILE * noise, high=gain + LOW_QUANTILE * noise)


def _mean_size(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / max(1, len(errors))
