"""The highest rate at which the objectives hold, now and after each open suggestion. Pure.

It costs seconds of CPU, so it runs in the worker process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flettner.agent.domain.cost import GpuRates, cost_of_good_requests
from flettner.agent.domain.model import Slo
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.moved_load import (
    BY_DATA_SHEET,
    changes_layout,
    in_layout,
    move_load,
)
from flettner.agent.prediction.served_load import ServedLoad, find_load, latest_part
from flettner.performance_model.band import Band
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep, describe_extrapolation
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import find_capacity
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.resample import scale_rate
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Knob, Setting, Value

MOST_REQUESTS = 1_500  # of the trace, the latest: some ten replays at up to 64 times their rate for each draw
DRAWS = 8
NO_OBJECTIVE = "no latency is promised: [targets.slo] needs ttft, itl or e2e"
LOWER = (4.0, 3.0, 2.5, 2.0, 1.5, 1.0)  # times the recorded rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """`suggested`: the changes of open suggestions, by id."""

    learned: LearnedModel
    slo: Slo
    suggested: tuple[tuple[str, Setting], ...] = ()
    rates: GpuRates = field(default_factory=GpuRates)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRequest:
    learned: LearnedModel
    slo: Slo
    card: str  # its name


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityForecast:
    """Of one server. `rate_rps`: None if not even a 64th of the recorded load meets the objectives."""

    suggestion: str = ""  # id; empty: the setting in force
    to: Mapping[Knob, Value] = field(default_factory=dict)
    rate_rps: Band | None = None
    cost_per_thousand_good_requests: Band | None = None  # at this rate; None without a price
    extrapolation: str = ""  # why it is less certain than the band says; empty: nothing is known
    certain_rps: float | None = None  # up to which steps are like those of the fit; of the setting in force
    why_not: str = ""  # why it is not predicted; empty: it is


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer:
    """`share`: of the requests, promised. `rate_rps`: recorded, of one server."""

    rate_rps: float
    servers: int
    gpus: int  # of one server
    share: float
    law_source: str
    now: CapacityForecast
    suggestions: tuple[CapacityForecast, ...]


def predict_capacity(request: CapacityRequest) -> CapacityAnswer:
    """Raises PredictionInputError with what is missing."""
    load = find_load(request.learned, request.slo, request.rates)
    if load.goals is None:
        raise PredictionInputError(NO_OBJECTIVE)
    goals = load.goals
    return CapacityAnswer(
        rate_rps=load.rate_rps,
        servers=load.servers,
        gpus=load.gpus,
        share=goals.share,
        law_source=request.learned.law_source,
        now=_with_certain_rate(load, _forecast(load, goals, load.present, {}, "")),
        suggestions=tuple(_suggested(load, goals, name, to) for name, to in request.suggested),
    )


def predict_on_card(request: CardRequest) -> Band | None:
    """The highest rate of a server on another card, in the same layout; None where it meets no objective.

    Raises PredictionInputError with what is missing, or why the model does not fit.
    """
    load = find_load(request.learned, request.slo)
    if load.goals is None:
        raise PredictionInputError(NO_OBJECTIVE)
    moved = move_load(load, replace(load.config, card=find_gpu(request.card), start=None), load.engines)
    return _on_moved(moved, load.goals, {}, "").rate_rps


def _suggested(load: ServedLoad, goals: Goals, name: str, to: Setting) -> CapacityForecast:
    if changes_layout(to):
        return _in_layout(load, goals, name, to)
    unmodelled = [knob for knob in to if not hasattr(load.present, knob) and knob != "gpu_memory_utilization"]
    why = f"the effect of {unmodelled[0]} is not modelled" if unmodelled else ""
    try:
        limits = load.present if why else load.limits_with(to)
        why = why or veto(with_changes(load.config, to), limits, load.config)
    except PredictionInputError as error:
        why, limits = str(error), load.present
    if why:
        return CapacityForecast(suggestion=name, to=dict(to), why_not=why)
    return _forecast(load, goals, limits, to, name)


def _in_layout(load: ServedLoad, goals: Goals, name: str, to: Setting) -> CapacityForecast:
    try:
        return _on_moved(in_layout(load, to), goals, to, name)
    except PredictionInputError as error:
        return CapacityForecast(suggestion=name, to=dict(to), why_not=str(error))


def _on_moved(moved: ServedLoad, goals: Goals, to: Setting, name: str) -> CapacityForecast:
    made = _forecast(moved, goals, moved.present, to, name)
    if made.rate_rps is None:
        return made
    return replace(made, extrapolation="; ".join(filter(None, (BY_DATA_SHEET, made.extrapolation))))


def _forecast(
    load: ServedLoad, goals: Goals, limits: EngineLimits, to: Setting, name: str
) -> CapacityForecast:
    trace = latest_part(load.trace, MOST_REQUESTS)
    of_engine = find_capacity(trace, load.law, limits, goals, replicates=DRAWS)
    if of_engine is None:
        return CapacityForecast(suggestion=name, to=dict(to))
    rate = of_engine.times(load.engines)
    times = rate.value / load.rate_rps
    return CapacityForecast(
        suggestion=name,
        to=dict(to),
        rate_rps=rate,
        cost_per_thousand_good_requests=cost_of_good_requests(rate, goals.share, load.rates, load.gpus),
        extrapolation=_describe_steps(load, limits, times, round(times, 2)),
    )


def _describe_steps(load: ServedLoad, limits: EngineLimits, times: float, rate: float = 1.0) -> str:
    """How far the steps at so many times the recorded rate, called `rate`, are from those of the fit."""
    trace = scale_rate(latest_part(load.trace, MOST_REQUESTS), times)
    largest = ReplayedScheduler(trace, load.law.law, limits).run().largest_step
    step = LargestStep(tokens=largest.tokens, sequences=largest.sequences)
    return describe_extrapolation(load.law.fitted_to, step, rate)


def _with_certain_rate(load: ServedLoad, now: CapacityForecast) -> CapacityForecast:
    """The forecast of the setting in force, with the highest rate whose steps are like those of the fit."""
    if now.rate_rps is None or not now.extrapolation:
        return replace(now, certain_rps=now.rate_rps.value if now.rate_rps else None)
    most = now.rate_rps.value / load.rate_rps
    lower = (most, *(times for times in LOWER if times < most))
    certain = next((times for times in lower if not _describe_steps(load, load.present, times)), None)
    return replace(now, certain_rps=None if certain is None else certain * load.rate_rps)
