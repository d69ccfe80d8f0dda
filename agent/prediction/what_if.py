"""What would happen with other flags, faster requests or longer prompts. Touches nothing; pure.

It costs seconds of CPU, so it runs in the worker process.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.model import Slo
from flettner.agent.domain.model_search import MOST_TIMES, Capacity, Numbers
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.served_load import LEAST_REQUESTS, ServedLoad, find_load, latest_part
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import describe_extrapolation
from flettner.performance_model.prediction import largest_of
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.resample import scale_prompts, scale_rate, window
from flettner.performance_model.trace import duration_s
from flettner.vllm_facts.knobs import misfit
from flettner.vllm_facts.values import Knob, Setting, Value

CURVE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the load that was asked for
CURVE_REQUESTS, CURVE_DRAWS = 1_000, 4  # a point of the curve is 2 x 5 runs
SHOWN = frozenset({"attainment", "cost_per_million_tokens", "cost_per_thousand_good_requests"}).union(
    f"{latency}_p{percent}_s" for latency in ("ttft", "itl") for percent in (50, 90, 99)
)  # on the curve
MODELLED = {*EngineLimits.__dataclass_fields__, "gpu_memory_utilization"} - {"kv_blocks", "max_model_len"}
"""Flags whose effect a prediction tells."""
MOST_EVENTS = 20_000
"""Of one run of some 100: a run of 3,000 requests of a chat has 9,000. Each takes 4 to 13 us of CPU."""
KERNEL_FLAGS = "its effect on the time of a step is not modelled; modelled are: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRequest:
    """`rate`, `prompt`: how many times as fast the requests come, and as long the prompts are."""

    learned: LearnedModel
    slo: Slo
    changes: Mapping[Knob, Value]
    rate: float = 1.0
    prompt: float = 1.0
    rates: GpuRates = field(default_factory=GpuRates)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    rate_rps: float
    now: Numbers
    then: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """`now` is of the present flags under the present load, `then` of what was asked for.

    The curve has both settings under the prompts that were asked for, at several rates.
    """

    changes: Mapping[Knob, Value]
    rate_rps: float  # recorded, of one server
    requests: int
    law_source: str
    now: Numbers
    then: Numbers
    warning: str  # why vLLM would refuse the flags, or they do not fit; empty if nothing is known
    extrapolation: str  # why it is less certain than the bands say; empty if nothing is known
    capacity: Capacity | None  # of the present flags and load; None without objectives
    then_capacity: Capacity | None
    curve: tuple[CurvePoint, ...]


def predict_what_if(request: WhatIfRequest) -> WhatIf:
    """Raises PredictionInputError with what is missing, or what is not modelled."""
    for name, factor in (("rate", request.rate), ("prompt", request.prompt)):
        if not 1 / MOST_TIMES <= factor <= MOST_TIMES:
            raise PredictionInputError(f"{name}: must be a factor from 1/64 to 64, as in 1.5, not {factor:g}")
    load = find_load(request.learned, request.slo, request.rates)
    _refuse_invalid(request.changes)
    _refuse_unmodelled(request.changes, load.present)
    limits = load.limits_with(request.changes)
    recorded = len(load.trace)
    load = _shorten(load, request, limits)
    asked = _asked(load, request)
    then = asked.predict(limits)
    changed = with_changes(load.config, request.changes)
    far = describe_extrapolation(load.law.fitted_to, largest_of(then), request.rate)
    few = f"only the latest {len(load.trace):,} of {recorded:,} requests are replayed, as more take too long"
    return WhatIf(
        changes=dict(request.changes),
        rate_rps=load.rate_rps,
        requests=len(load.trace),
        law_source=request.learned.law_source,
        now=load.predict(load.present),
        then=then,
        warning=veto(changed, limits, load.config),
        extrapolation="; ".join(filter(None, (far, few if len(load.trace) < recorded else ""))),
        capacity=load.capacity(load.present),
        then_capacity=asked.capacity(limits),
        curve=tuple(_curve(asked, limits)),
    )


def _asked(load: ServedLoad, request: WhatIfRequest) -> ServedLoad:
    """Of another load the power is unknown: it was measured under the present one."""
    asked = replace(load, trace=scale_rate(scale_prompts(load.trace, request.prompt), request.rate))
    if request.rate == request.prompt == 1:
        return asked
    return replace(asked, rates=replace(asked.rates, power_w=None))


def _shorten(load: ServedLoad, request: WhatIfRequest, limits: EngineLimits) -> ServedLoad:
    """As many of the latest requests as both settings serve in MOST_EVENTS."""
    sides = ((load.trace, load.present), (_asked(load, request).trace, limits))
    most = min(
        ReplayedScheduler(trace, load.law.law, setting).ended_within(MOST_EVENTS) for trace, setting in sides
    )
    return replace(load, trace=latest_part(load.trace, max(LEAST_REQUESTS, most)))


def modelled_flags(learned: LearnedModel) -> Setting:
    """The flags whose effect a prediction tells, with the values in force; None: without a limit, or unknown.

    Empty where the setting is not modelled.
    """
    try:
        limits = learned.limits()
    except PredictionInputError:
        return {}
    return {knob: getattr(limits, knob, learned.config.setting.get(knob)) for knob in sorted(MODELLED)}


def _refuse_invalid(changes: Setting) -> None:
    for knob, value in changes.items():
        if why := misfit(knob, value):
            raise PredictionInputError(f"{knob} {why}, not {value}")


def _refuse_unmodelled(changes: Setting, limits: EngineLimits) -> None:
    for knob in changes:
        if knob not in MODELLED:
            raise PredictionInputError(f"{knob}: {KERNEL_FLAGS.format(', '.join(sorted(MODELLED)))}")
    if changes.get("enable_prefix_caching") is True and not limits.enable_prefix_caching:
        raise PredictionInputError(
            "enable_prefix_caching: what the requests have in common is not recorded while it is off"
        )


def _curve(load: ServedLoad, limits: EngineLimits) -> Iterator[CurvePoint]:
    part = load.trace
    if len(part) > CURVE_REQUESTS:
        since_s = part[-CURVE_REQUESTS].arrival_s
        part = window(part, since_s, duration_s(part) - since_s + 1e-6)
    for times in CURVE:
        at_rate = replace(load, trace=scale_rate(part, times))
        now, then = (at_rate.predict(setting, draws=CURVE_DRAWS) for setting in (load.present, limits))
        yield CurvePoint(rate_rps=load.rate_rps * times, now=_shown(now), then=_shown(then))


def _shown(numbers: Numbers) -> Numbers:
    return {name: band for name, band in numbers.items() if name in SHOWN}
