"""Predicts latencies and goodput of a setting for a recorded load, with bands, and the load that it could
carry.

The band of a number comes from REPLICATES runs, each with another draw of the load (block bootstrap), of
the law, and of the error of TTFT that the law leaves. The draws depend on the seed only: two settings see the
same, so their difference is more certain than either.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, exp
from random import Random

from flettner.performance_model.band import Band, draw_evenly, draws_quantile
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.outcome import Goals, attainment, measure
from flettner.performance_model.replayed_scheduler import EngineRun, ReplayedScheduler
from flettner.performance_model.resample import bootstrap, scale_rate
from flettner.performance_model.step_law import StepLaw, UncertainLaw
from flettner.performance_model.trace import Trace, mean_rate

REPLICATES = 12
LOW, HIGH = 0.1, 0.9
_MOST_TIMES = 64.0  # the load that headroom looks for, relative to the recorded one
_EXACT = 0.02  # relative error of the headroom
_WITH_OUTSIDE = ("ttft", "e2e")  # latencies that the time outside the engine is part of
MOST_REPLICAS = 64  # as _MOST_TIMES: the load of each is at least a 64th


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """`rate_per_s`: the most that meets the goals, None if not even a 64th of the load does, or if all come
    at once.

    `replicas`: the least number of servers of this setting that meet them for the recorded load, never fewer
    than the rate asks for; None: more than MOST_REPLICAS.
    """

    rate_per_s: float | None
    replicas: int | None


def predict(
    trace: Trace,
    law: UncertainLaw,
    limits: EngineLimits,
    goals: Goals,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    is_load_known: bool = False,
) -> Mapping[str, Band]:
    """The numbers of `outcome.measure`, each with its band.

    `is_load_known`: the requests themselves came again, so only the law is uncertain.
    """
    values = measure(ReplayedScheduler(trace, law.law, limits).run(), goals)
    drawn = []
    for load, drawn_law, stretch in _draw(trace, law, replicates, seed, is_load_known=is_load_known):
        run = ReplayedScheduler(load, drawn_law, limits).run()
        stretch_waits(run, stretch)
        drawn.append(measure(run, goals))
    return {
        name: _band_of(value, [outcome[name] for outcome in drawn if name in outcome] or [value])
        for name, value in values.items()
    }


def _draw(
    trace: Trace, law: UncertainLaw, count: int, seed: int, *, is_load_known: bool = False
) -> Iterator[tuple[Trace, StepLaw, float]]:
    """Loads and laws that may as well be, and by what each TTFT is off beyond its steps."""
    laws, random = law.draws or (law.law,), Random(f"waits:{seed}")  # noqa: S311 - statistics, not cryptography
    for k, error in enumerate(draw_evenly(count, random)):
        load = trace if is_load_known else bootstrap(trace, seed + k)
        yield load, laws[k % len(laws)], exp(law.wait_error * error)


def _band_of(value: float, drawn: Iterable[float]) -> Band:
    several = sorted(drawn)
    low, high = draws_quantile(several, LOW), draws_quantile(several, HIGH)
    return Band(value=value, low=min(value, low), high=max(value, high))


def add_outside(numbers: Mapping[str, Band], outside: Band) -> Mapping[str, Band]:
    """TTFT and E2E as clients see them. `outside`: seconds of each request outside of the engine."""
    return {
        name: Band(
            value=band.value + outside.value, low=band.low + outside.low, high=band.high + outside.high
        )
        if name.startswith(_WITH_OUTSIDE)
        else band
        for name, band in numbers.items()
    }


def stretch_waits(run: EngineRun, factor: float) -> None:
    """Multiply the TTFT of each request of a run; its other tokens come as much later."""
    for request in run.requests:
        if request.first_s is not None:
            later_s = (factor - 1) * (request.first_s - request.arrival_s)
            request.first_s += later_s
            request.last_s = None if request.last_s is None else request.last_s + later_s


def largest_of(numbers: Mapping[str, Band]) -> LargestStep:
    """The largest step of a prediction."""
    return LargestStep(tokens=numbers["peak_step_tokens"].value, sequences=numbers["peak_sequences"].value)


def find_headroom(trace: Trace, law: StepLaw, limits: EngineLimits, goals: Goals) -> Headroom:
    """By bisection of the rate, with the load's own shape."""
    rate = mean_rate(trace)
    if rate is None:
        return Headroom(rate_per_s=None, replicas=_find_replicas(trace, law, limits, goals, 1))
    times = _find_times(trace, law, limits, goals)
    if times is None:
        return Headroom(rate_per_s=None, replicas=None)
    replicas = _find_replicas(trace, law, limits, goals, ceil(1 / times))
    return Headroom(rate_per_s=rate * times, replicas=replicas)


def find_capacity(
    trace: Trace,
    law: UncertainLaw,
    limits: EngineLimits,
    goals: Goals,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Band | None:
    """The most requests per second that meet the goals, with its band; see `predict` and `Headroom`.

    A draw of which not even a 64th of the load does counts as 0. None if the load itself is one of these.
    """
    rate = mean_rate(trace)
    times = None if rate is None else _find_times(trace, law.law, limits, goals)
    if rate is None or times is None:
        return None
    drawn = []
    for load, drawn_law, stretch in _draw(trace, law, replicates, seed):
        drawn_times = _find_times(load, drawn_law, limits, goals, stretch)
        drawn.append((drawn_times or 0.0) * (mean_rate(load) or 0.0))
    return _band_of(rate * times, drawn)


def _find_times(
    trace: Trace, law: StepLaw, limits: EngineLimits, goals: Goals, stretch: float = 1.0
) -> float | None:
    """How many times as fast the requests may come; None if not even a 64th. `stretch`: of each TTFT."""

    def holds(times: float) -> bool:
        run = ReplayedScheduler(scale_rate(trace, times), law, limits).run()
        if stretch != 1:
            stretch_waits(run, stretch)
        return attainment(run, goals) >= goals.share

    low, high = (1.0, 2.0) if holds(1.0) else (0.5, 1.0)
    while high < _MOST_TIMES and low >= 1.0 and holds(high):
        low, high = high, 2 * high
    while low < 1.0 and low * _MOST_TIMES >= 1.0 and not holds(low):
        low, high = low / 2, low
    if low * _MOST_TIMES < 1.0:
        return None
    while high / low > 1 + _EXACT:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _find_replicas(trace: Trace, law: StepLaw, limits: EngineLimits, goals: Goals, least: int) -> int | None:
    """The least number of replicas, from `least` on, that meet the goals together. A proxy draws one for each
    request.

    Taking turns would make arrivals at each more regular than a proxy does.
    """
    for count in range(least, min(MOST_REPLICAS, len(trace)) + 1):
        random, met = Random(f"replicas:{count}"), 0.0  # noqa: S311 - statistics, not cryptography
        places = [random.randrange(count) for _ in trace]
        for server in range(count):
            part = [request for request, place in zip(trace, places, strict=True) if place == server]
            met += attainment(ReplayedScheduler(part, law, limits).run(), goals) * len(part) if part else 0.0
        if met >= goals.share * len(trace):
            return count
    return None
