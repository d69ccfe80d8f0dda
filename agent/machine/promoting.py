"""PROMOTING: the new servers have everything; the old ones drain and go."""

from dataclasses import replace
from datetime import datetime

from agent.domain.effects import Drain, Retire
from agent.domain.events import Aborted, EffectFailed, Retired, Routed, ServerLost
from agent.domain.model import Server
from agent.domain.state import Phase, State
from agent.machine.restoring import TRIES, missing_server, restore
from agent.machine.rolling_back import roll_back
from agent.machine.routes import route_to
from agent.machine.transitions import (
    Moved,
    Rules,
    add_retirement,
    enter_phase,
    is_awaited,
    is_green,
    remember_outcome,
    request_effect,
    retry_later,
    without_effects,
)


def promote(state: State, at: datetime, why: str) -> Moved:
    """From here on the new ones are what stays; why they were promoted is part of the rollout."""
    rollout = replace(state.rollout, why=why) if state.rollout else None
    state = enter_phase(replace(state, rollout=rollout), Phase.PROMOTING, at, why)
    return request_effect(state, route_to(running_newcomers(state), *state.standing))


def running_newcomers(state: State) -> tuple[Server, ...]:
    return tuple(server for server in state.newcomers if server.name not in state.gone)


def next_to_retire(state: State) -> Server | None:
    """The old server whose turn it is to go; None once the new ones are the fleet."""
    return state.fleet[-1] if state.green is not None and state.fleet else None


def on_routed(rules: Rules, state: State, event: Routed) -> Moved:
    """First split: the old ones drain. Last split, without them: done."""
    if not is_awaited(state, event.number):
        return without_effects(state)
    return (
        release_next(state) if next_to_retire(state) is not None else finish_promotion(rules, state, event.at)
    )


def release_next(state: State) -> Moved:
    """The next old server: it drains if it may have requests open, and is retired if trimtab may."""
    old, rollout = next_to_retire(state), state.rollout
    if old is None or rollout is None:
        return without_effects(state)
    if old.name not in state.vacated:  # one that has ended too: somebody may have started it again meanwhile
        draining = replace(state, note=f"{old.name} gets no new request; those it has may end")
        return request_effect(draining, Drain(number=0, server=old, deadline_s=rollout.plan.drain_s))
    return request_effect(
        state, Retire(number=0, server=old)
    )  # it has stopped; whoever restarts it no longer may


def on_retired(_: Rules, state: State, event: Retired) -> Moved:
    effect = state.awaiting
    if not isinstance(effect, Retire) or effect.number != event.number:
        return without_effects(state)
    return remove_old_server(replace(state, note=f"{effect.server.name} is gone"), effect.server)


def remove_old_server(state: State, old: Server) -> Moved:
    """One old server fewer; after the last one the new servers are the fleet."""
    left = [server for server in state.fleet if server.name != old.name]
    vacated = tuple(name for name in state.vacated if name != old.name)
    if left:
        return release_next(replace(state, blue=left[0], peers=tuple(left[1:]), vacated=vacated))
    first, *others = running_newcomers(state) or state.newcomers
    on_lost = [server for server in state.newcomers if server not in (first, *others)]
    fleet = replace(state, blue=first, peers=(*others, *on_lost), green=None, crew=(), vacated=())
    return request_effect(fleet, route_to(running_newcomers(state) or (first,)))


def finish_promotion(rules: Rules, state: State, at: datetime) -> Moved:
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    state = replace(state, awaiting=None, rollout=replace(rollout, outcome="promoted", ended_at=at))
    state = remember_outcome(state, at, "promoted", rollout.why)
    if missing_server(state) is not None:
        return restore(rules, state, at, rollout.why)
    return without_effects(enter_phase(state, Phase.OBSERVING, at, rollout.why))


def can_roll_back(state: State) -> bool:
    """No old server has gone or is going: each still runs, or can be started again."""
    if state.green is None or state.rollout is None or isinstance(state.awaiting, Retire):
        return False
    left = {*state.vacated, *(server.name for server in state.standing)}
    return left == {*state.rollout.old}


def on_failed(_: Rules, state: State, event: EffectFailed) -> Moved:
    """Before an old server goes there is a way back; after it only on."""
    if not is_awaited(state, event.number):
        return without_effects(state)
    if can_roll_back(state):
        why = f"could not promote: {event.why}"
        return roll_back(state, event.at, why, event.log, result="undecided")
    if isinstance(state.awaiting, Retire) and state.tries + 1 >= TRIES:
        old = state.awaiting.server
        state, effects = add_retirement(remove_old_server(state, old), old)
        return replace(state, note=f"{old.name} is still there: {event.why}"), effects
    return without_effects(retry_later(state, event.at, event.why))


def abort(_: Rules, state: State, event: Aborted) -> Moved:
    """A person's abort wins for as long as there is a way back."""
    if not can_roll_back(state):
        return without_effects(state)
    return roll_back(state, event.at, f"aborted by {event.actor}: {event.reason}", result="denied")


def on_lost(rules: Rules, state: State, event: ServerLost) -> Moved:
    """A new one is lost: back; or on, if others carry it; or a successor. A lost old one was leaving."""
    kept = state.newcomers if state.green is not None else state.fleet
    if event.server not in {server.name for server in kept}:
        return without_effects(state)
    if can_roll_back(state):
        hung = is_green(state, event)
        return roll_back(state, event.at, f"green: {event.why}", event.log, hung=hung)
    others = [server for server in kept if server.name not in (*state.gone, event.server)]
    if not event.gone or others:
        return without_effects(replace(state, note=f"{event.server}: {event.why}"))
    return restore(rules, state, event.at, f"{event.server}: {event.why}")
