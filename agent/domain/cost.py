"""The cost of serving: money for tokens and good requests, tokens for energy; formulas: docs/cost.md."""

from dataclasses import dataclass

from flettner.agent.domain.model_search import ModelSearchResult, Numbers
from flettner.performance_model.band import Band
from flettner.vllm_facts.values import Setting

COSTS = ("cost_per_million_tokens", "cost_per_thousand_good_requests", "tokens_per_joule")
"""Names of numbers of a prediction: see `add_cost`."""
HOUR_S = 3600.0
MILLION, THOUSAND = 1e6, 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRates:
    """Of one GPU. None: unknown."""

    per_hour: float | None = None  # price, in the currency of the config
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Measured over the last minutes, of all servers that run. Money is in the currency of the config.

    None: no price or no power is known, or nothing was served.
    """

    gpus: int
    power_w: float | None = None  # of all of them
    per_hour: float | None = None
    per_million_tokens: float | None = None  # generated ones
    per_thousand_good_requests: float | None = None  # that met every objective
    tokens_per_joule: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCost:
    """By the names of COSTS, of one server: with the setting in force, and with a change."""

    now: Numbers
    then: Numbers


def cost_of_change(result: ModelSearchResult | None, to: Setting) -> PredictedCost | None:
    """None if the change or its cost was not predicted."""
    then = result.numbers_with(to) if result is not None else None
    if result is None or then is None or not any(name in then for name in COSTS):
        return None
    now, after = ({name: side[name] for name in COSTS if name in side} for side in (result.present, then))
    return PredictedCost(now=now, then=after)


def measure_cost(
    rates: GpuRates, gpus: int, *, tokens_per_s: float | None, good_per_s: float | None
) -> Cost | None:
    """None without a price and a power. `good_per_s`: requests that met every objective."""
    if rates.per_hour is None and rates.power_w is None:
        return None
    per_s = None if rates.per_hour is None else gpus * rates.per_hour / HOUR_S
    power_w = None if rates.power_w is None else gpus * rates.power_w
    return Cost(
        gpus=gpus,
        power_w=power_w,
        per_hour=None if rates.per_hour is None else gpus * rates.per_hour,
        per_million_tokens=MILLION * per_s / tokens_per_s if per_s is not None and tokens_per_s else None,
        per_thousand_good_requests=THOUSAND * per_s / good_per_s
        if per_s is not None and good_per_s
        else None,
        tokens_per_joule=tokens_per_s / power_w if power_w and tokens_per_s else None,
    )


def add_cost(numbers: Numbers, rates: GpuRates, gpus: int) -> Numbers:
    """The numbers of a prediction with the cost of a server of so many GPUs; see `Cost`.

    Without what would be infinite: the cost of requests of which the band holds none.
    """
    tokens, good = numbers.get("tokens_per_s"), numbers.get("goodput_per_s")
    added = {}
    if rates.per_hour is not None:
        per_s = gpus * rates.per_hour / HOUR_S
        if tokens is not None and tokens.low > 0:
            added["cost_per_million_tokens"] = _divide(MILLION * per_s, tokens)
        if good is not None and good.low > 0:
            added["cost_per_thousand_good_requests"] = _divide(THOUSAND * per_s, good)
    if rates.power_w and tokens is not None:
        joules = 1 / (gpus * rates.power_w)
        added["tokens_per_joule"] = Band(
            value=tokens.value * joules, low=tokens.low * joules, high=tokens.high * joules
        )
    return {**numbers, **added}


def cost_of_good_requests(rate: Band, share: float, rates: GpuRates, gpus: int) -> Band | None:
    """Of 1,000 good ones, a `share` of a rate in requests per second; None without a price or such a rate."""
    if rates.per_hour is None or rate.low <= 0:
        return None
    return _divide(THOUSAND * gpus * rates.per_hour / HOUR_S / share, rate)


def _divide(amount: float, rate: Band) -> Band:
    return Band(value=amount / rate.value, low=amount / rate.high, high=amount / rate.low)
