"""The recorded load of one server, with the law and the objectives, and what a setting makes of it. Pure.

The engines of a data-parallel server are replayed as one, with its share of the requests: vLLM gives each
request to the engine with the fewest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from flettner.agent.domain.cost import GpuRates, add_cost
from flettner.agent.domain.model import Slo
from flettner.agent.domain.model_search import Capacity, Numbers
from flettner.agent.prediction.learned import LearnedModel
from flettner.performance_model.band import Band
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import one_engine
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import add_outside, find_headroom, predict
from flettner.performance_model.resample import window
from flettner.performance_model.search import moved_limits
from flettner.performance_model.step_law import UncertainLaw
from flettner.performance_model.trace import Trace, duration_s, mean_rate
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import engine_count, layout
from flettner.vllm_facts.values import Knob, Value

MOST_REQUESTS = 3_000  # of the trace, the latest: 5 minutes at 10 requests/s
LEAST_REQUESTS, LEAST_S = 50, 120.0  # fewer, or a shorter trace, show no load
REPLICATES = 8  # draws behind each band
UNKNOWN_RATES = GpuRates()
SUMMED = frozenset({"tokens_per_s", "goodput_per_s"})  # numbers that the engines of a server add up to


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """`config`, `trace` and `present`, the limits in force, are those of one of the server's `engines`; rates
    and costs are the server's. `outside_s`: of each request, passes outside the engine.
    """

    config: ServeConfig
    trace: Trace
    law: UncertainLaw
    goals: Goals | None  # of the engine, without the time outside it
    present: EngineLimits
    servers: int
    outside_s: float
    rates: GpuRates = field(default_factory=GpuRates)
    engines: int = 1

    @property
    def rate_rps(self) -> float:
        """Of one server."""
        return self.engines * (mean_rate(self.trace) or 0.0)

    @property
    def gpus(self) -> int:
        """Of one server."""
        return self.engines * layout(self.config).gpus

    def limits_with(self, changes: Mapping[Knob, Value]) -> EngineLimits:
        """Raises PredictionInputError."""
        return moved_limits(self.config, self.present, changes) if changes else self.present

    def predict(
        self, limits: EngineLimits, draws: int = REPLICATES, *, is_load_known: bool = False
    ) -> Numbers:
        """TTFT and E2E as clients see them, and the cost. Without objectives there is no goodput."""
        bands = predict(
            self.trace,
            self.law,
            limits,
            self.goals or Goals(),
            replicates=draws,
            is_load_known=is_load_known,
        )
        outside = Band(value=self.outside_s, low=self.outside_s, high=self.outside_s)
        shifted = add_outside(bands, outside)
        if self.goals is None:
            shifted = {
                name: band for name, band in shifted.items() if name not in {"attainment", "goodput_per_s"}
            }
        whole = {name: band.times(self.engines) if name in SUMMED else band for name, band in shifted.items()}
        return add_cost(whole, self.rates, self.gpus)

    def capacity(self, limits: EngineLimits) -> Capacity | None:
        """None without objectives. Rates are of one server, `servers` is for the load of all."""
        if self.goals is None:
            return None
        headroom = find_headroom(self.trace, self.law.law, limits, self.goals)
        servers = headroom.replicas and ceil(headroom.replicas / self.engines)
        rate_rps = headroom.rate_per_s and self.engines * headroom.rate_per_s
        if self.servers > 1 and rate_rps:
            servers = ceil(self.servers * self.rate_rps / rate_rps)
        return Capacity(rate_rps=rate_rps, servers=servers)


def find_load(learned: LearnedModel, slo: Slo, rates: GpuRates = UNKNOWN_RATES) -> ServedLoad:
    """Raises PredictionInputError with what is missing: a law, traffic, or a setting that is modelled."""
    if learned.law is None:
        raise PredictionInputError(f"there is no law of step time: {learned.why_no_law}")
    seconds = duration_s(learned.trace)
    if len(learned.trace) < LEAST_REQUESTS or seconds < LEAST_S:
        raise PredictionInputError(
            f"{len(learned.trace)} requests in {seconds:.0f} s are recorded: a prediction needs at least "
            f"{LEAST_REQUESTS} in {LEAST_S:.0f} s"
        )
    trace, engines = latest_part(learned.trace), engine_count(learned.config)
    if learned.servers % engines:
        raise PredictionInputError(f"what is learned is not of {engines} engines yet: ask again in a minute")
    return ServedLoad(
        config=one_engine(learned.config),
        trace=trace,
        law=learned.law,
        goals=goals_of(slo, learned.outside_s),
        present=learned.limits(),
        servers=learned.servers // engines,
        outside_s=learned.outside_s,
        rates=rates,
        engines=engines,
    )


def goals_of(slo: Slo, outside_s: float) -> Goals | None:
    """The objectives of one request in the engine; None without any.

    The share is the smallest promised one.
    """
    promised = [objective for objective in (slo.ttft, slo.itl, slo.e2e) if objective is not None]
    if not promised:
        return None
    goals = Goals(
        ttft_s=slo.ttft.under_s if slo.ttft else None,
        itl_s=slo.itl.under_s if slo.itl else None,
        e2e_s=slo.e2e.under_s if slo.e2e else None,
        share=min(objective.share for objective in promised),
    )
    return goals.inside(outside_s)


def latest_part(trace: Trace, most: int = MOST_REQUESTS) -> Trace:
    """The latest requests, from the time 0 on."""
    if len(trace) <= most:
        return trace
    since_s = trace[-most].arrival_s
    return window(trace, since_s, duration_s(trace) - since_s + 1e-6)
