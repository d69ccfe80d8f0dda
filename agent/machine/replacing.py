"""DRAINING and REPLACING: one place after the other passes from an old server to a new one."""

from dataclasses import replace
from datetime import datetime

from agent.domain.effects import Drain, Launch
from agent.domain.events import EffectFailed, Observed, Routed, ServerLost, Stopped
from agent.domain.model import OutcomeResult, Server
from agent.domain.request_counts import RequestCounts
from agent.domain.state import Phase, State
from agent.machine.lease import keep_alive
from agent.machine.restoring import restore
from agent.machine.rolling_back import mark_stopped, roll_back
from agent.machine.routes import route_to
from agent.machine.transitions import (
    Moved,
    Rules,
    can_serve,
    enter_phase,
    is_awaited,
    is_green,
    name_next_server,
    request_effect,
    without_effects,
)


def server_to_replace(state: State) -> Server | None:
    """The old server whose place the newest one takes."""
    green = state.green
    return next((s for s in state.fleet if green is not None and s.name == green.like), None)


def drain_old_server(state: State, at: datetime, why: str) -> Moved:
    """Traffic leaves the old server; the others carry it, or nobody: then the route is closed."""
    old, rollout = server_to_replace(state), state.rollout
    if old is None or rollout is None:
        raise AssertionError(f"no place to vacate in {state.phase}")
    others = [s for s in state.standing if s.name != old.name]
    state = enter_phase(state, Phase.DRAINING, at, f"{why}: {old.name} gives its place to a new server")
    return request_effect(state, route_to((*others, *state.crew), old, closed_s=rollout.outage_s))


def on_routed(_: Rules, state: State, event: Routed) -> Moved:
    old, rollout = server_to_replace(state), state.rollout
    if old is None or rollout is None or not is_awaited(state, event.number):
        return without_effects(state)
    return request_effect(state, Drain(number=0, server=old, deadline_s=rollout.plan.drain_s))


def on_stopped(_: Rules, state: State, event: Stopped) -> Moved:
    """Its place is free, and its memory too."""
    if not is_awaited(state, event.number):
        return without_effects(state)
    old, green, rollout = server_to_replace(state), state.green, state.rollout
    if old is None or green is None or rollout is None:
        return without_effects(state)
    state = mark_stopped(state, old)
    state = enter_phase(state, Phase.LAUNCHING, event.at, f"{old.name} has stopped")
    return request_effect(state, Launch(number=0, server=green, deadline_s=rollout.plan.start_s))


def on_failed(_: Rules, state: State, event: EffectFailed) -> Moved:
    if not is_awaited(state, event.number):
        return without_effects(state)
    return roll_back(state, event.at, event.why, event.log, result="undecided")


def replace_next(state: State, at: datetime, why: str) -> Moved | None:
    """Turn the next place; None when each has been turned or given, or the last one is the hold-back's."""
    taken = {*state.vacated, *(server.like for server in state.newcomers)}
    left = [server for server in state.standing if server.name not in taken]
    if not left or state.green is None or (len(left) == 1 and keeps_control(state)):
        return None
    state, name = name_next_server(replace(state, crew=state.newcomers))
    old, first = left[-1], state.crew[0]
    green = Server(name=name, setting=first.setting, like=old.name)
    return drain_old_server(replace(state, green=green), at, why)


def keeps_control(state: State) -> bool:
    """The last old one serves until the hold-back has passed; where green came beside, one does anyway."""
    rollout = state.rollout
    return rollout is not None and rollout.strategy == "replace" and not rollout.held


def route_to_newcomer(state: State, at: datetime) -> Moved:
    """The new server is warm: it takes an equal share with all that serve."""
    if state.green is None:
        return without_effects(state)
    state = enter_phase(state, Phase.REPLACING, at, f"{state.green.name} takes its share")
    return request_effect(state, route_to((*state.standing, *state.newcomers)))


def on_observed(_: Rules, state: State, event: Observed) -> Moved:
    """The new servers' requests are exposed as long as the outcome is not known."""
    return keep_alive(count_exposed(state, event), event.at)


def count_exposed(state: State, event: Observed) -> State:
    rollout = state.rollout
    if rollout is None:
        return state
    names = {rollout.server, *(server.name for server in state.newcomers)}
    new = sum((event.arms.get(name, RequestCounts()) for name in names), RequestCounts())
    return replace(state, rollout=replace(rollout, exposed=rollout.exposed + new)) if new.asked else state


def on_lost(rules: Rules, state: State, event: ServerLost) -> Moved:
    """A server that serves is lost in the middle: back, with those that are left. The old one was leaving.

    Where green is all that is left it carries the traffic until an old one is back.
    """
    old = server_to_replace(state)
    leaving = state.phase is Phase.DRAINING and old is not None and event.server == old.name
    if leaving or (not event.gone and not is_green(state, event)):
        return without_effects(state)
    why = f"{event.server} was lost: {event.why}"
    if not is_green(state, event) and not (state.standing or state.crew) and can_serve(state, state.green):
        return restore(rules, state, event.at, why)
    newcomer = event.server in {server.name for server in state.newcomers}
    result: OutcomeResult | None = None if newcomer else "undecided"
    return roll_back(state, event.at, why, event.log, hung=is_green(state, event), result=result)
