"""What green costs blue on their card: measured in each rollout, foreseen for the next. Pure."""

from dataclasses import replace

from flettner.agent.domain.events import Observed
from flettner.agent.domain.model import Forecast, Plan, PreflightResult, StartForecast
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.start_cost import (
    LIKELY,
    LIKELY_MORE_S,
    WARM_UP_S,
    Speed,
    StartCost,
    expected_cost,
)
from flettner.agent.domain.state import State

KEPT = 5  # starts


def speed_of(state: State, event: Observed) -> Speed:
    """Of the servers in force in this second."""
    engines = [event.engines[server.name] for server in state.fleet.running if server.name in event.engines]
    busy = [engine for engine in engines if engine.tokens is not None and engine.running > 0]
    return Speed(sum(engine.tokens or 0.0 for engine in busy), sum(engine.running for engine in busy))


def record_start(state: State, canary: Canary) -> State:
    """Keep what the start cost, once green is warm."""
    if not canary.plan.shares_card:
        return state
    cost = StartCost(state.traffic.speed.slowdown_to(canary.starting))
    return replace(state, start_costs=(*state.start_costs, cost)[-KEPT:])


def record_shares(state: State, canary: Canary) -> State:
    """Add what the shares cost, once they are over."""
    if not canary.plan.shares_card or not state.start_costs:
        return state
    *earlier, last = state.start_costs
    cost = replace(last, beside=state.traffic.speed.slowdown_to(canary.beside))
    return replace(state, start_costs=(*earlier, cost))


def foresee_start(
    state: State, plan: Plan, preflight: PreflightResult, forecast: Forecast, served_rps: float
) -> Forecast:
    """Add the start to the forecast of the canary; unchanged if its duration is unknown."""
    if preflight.start_s is None or preflight.strategy != "surge":
        return forecast
    measured = state.start_costs if plan.shares_card else ()
    cost = expected_cost(measured) if plan.shares_card else StartCost(1.0, 1.0)
    start = StartForecast(
        usual_s=round(preflight.start_s + WARM_UP_S),
        likely_s=round(LIKELY * preflight.start_s + LIKELY_MORE_S),
        starting=round(cost.starting or 1.0, 2),
        beside=round(cost.beside or 1.0, 2),
        measured=len(measured),
    )
    return replace(forecast, start=replace(start, queue=_queue(state, plan, forecast, start, served_rps)))


def _queue(state: State, plan: Plan, forecast: Forecast, start: StartForecast, served_rps: float) -> int:
    """The present queue and the arrivals, less what blue serves, until the hold step; 0 if blue keeps up."""
    grows = forecast.rate_rps - served_rps
    if grows <= 0 or not state.traffic.waiting:
        return 0
    shares = [step.weight / 100 for step in plan.steps[:-1]]
    waiting = state.traffic.waiting + start.usual_s * (forecast.rate_rps - served_rps / start.starting)
    for share in shares:
        arrives, serves = (1 - share) * forecast.rate_rps, served_rps / start.beside
        waiting = max(0.0, waiting + forecast.usual_s / len(shares) * (arrives - serves))
    return round(waiting)
