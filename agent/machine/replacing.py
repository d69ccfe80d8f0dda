"""DRAINING and REPLACING: new servers take the slots of the old ones, one at a time.

Of an old server with replicas one at a time ends, and the new server in its slot gets one more. If a serving
server exits, or a slot is not freed, all of them are rolled back.
"""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.effects import Drain, Launch, Stop
from flettner.agent.domain.events import EffectFailed, Observed, Routed, ServerLost, Stopped
from flettner.agent.domain.model import Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.failing import describe_failures
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.restoring import restore
from flettner.agent.machine.rolling_back import mark_stopped, result_of_loss, roll_back
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    can_serve,
    count_exposed,
    enter_phase,
    is_green,
    name_next_server,
    request_effect,
    without_effects,
)


def server_to_replace(state: State) -> Server | None:
    """The old server whose slot the newest one takes."""
    like = state.canary.green.like
    return next((server for server in state.fleet.servers if server.name == like), None)


def drain_old_server(state: State, at: datetime, why: str) -> Transition:
    """Move the traffic of the old server, or of one replica, to the remaining ones.

    Without any the route is closed.
    """
    old, canary = server_to_replace(state), state.canary
    if old is None:
        raise AssertionError(f"no slot to free in {state.phase}")
    left = replace(old, replicas=old.replicas - 1)
    remaining = [
        left if server.name == old.name else server
        for server in state.fleet.running
        if server.name != old.name or left.replicas
    ]
    serving = [server for server in canary.greens if server.address]
    slot = f"a replica of {old.name}" if left.replicas else old.name
    state = enter_phase(state, Phase.DRAINING, at, f"{why}: {slot} frees its slot for a new server")
    outage_s = canary.suggestion.preflight.outage_s
    return request_effect(state, route_to((*remaining, *serving), old, closed_s=outage_s))


def on_routed(_: Rules, state: State, event: Routed) -> Transition:
    old = server_to_replace(state)
    if old is None:
        return without_effects(state)
    if state.split.planned is not None and state.split.weights.get(old.name):
        why = f"{old.name} cannot free its slot: {describe_failures(state)}"
        return roll_back(state, event.at, why, result="undecided")
    if old.replicas > 1:
        return request_effect(state, Stop(number=0, server=old, keep=old.replicas - 1))
    return request_effect(state, Drain(number=0, server=old, deadline_s=state.canary.plan.drain_s))


def on_stopped(_: Rules, state: State, event: Stopped) -> Transition:
    """The slot and its memory are free: launch the new server, or one more of its replicas."""
    effect = state.effects.awaited_as(Stop)
    note = (
        f"{effect.server.name} has {effect.keep} replicas left"
        if effect.keep
        else event.how or "the old server has stopped"
    )
    state = enter_phase(mark_stopped(state, effect), Phase.LAUNCHING, event.at, note)
    green = state.canary.green
    wanted = replace(green, replicas=green.replicas + 1) if green.address else green
    return request_effect(state, Launch(number=0, server=wanted, deadline_s=state.canary.plan.start_s))


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    return roll_back(state, event.at, event.why, event.log, result="undecided")


def replace_next(state: State, at: datetime, why: str) -> Transition | None:
    """Replace the next replica or old server; None if none is left, or the last one is the control."""
    canary = state.canary
    if state.fleet.replica_count == 1 and keeps_control(canary):
        return None
    if may_give_replica(state):
        return drain_old_server(state, at, why)
    taken = {*state.fleet.stopped, *(server.like for server in canary.greens)}
    left = [server for server in state.fleet.running if server.name not in taken]
    if not left:
        return None
    state, name = name_next_server(state)
    first = canary.greens[0]
    green = Server(
        name=name, setting=first.setting, like=left[-1].name, start=first.start, on_cpus=first.on_cpus
    )
    joined = replace(canary, greens=(*canary.greens, green))
    return drain_old_server(replace(state, rollout=joined), at, why)


def may_give_replica(state: State) -> bool:
    """Whether the newest server takes one more replica of the old one whose slot it has.

    With surge the last replica of the first old server to be replaced stays as the control.
    """
    old, canary = server_to_replace(state), state.canary
    if old is None or old not in state.fleet.running:
        return False
    surge = canary.suggestion.preflight.strategy == "surge"
    return old.replicas > (surge and canary.greens[0].like == old.name)


def keeps_control(canary: Canary) -> bool:
    """Whether the last old server serves until the hold step has passed; with surge one does anyway."""
    return canary.suggestion.preflight.strategy == "replace" and not canary.hold_passed


def route_to_green(state: State, at: datetime) -> Transition:
    """Give a warm new server an equal share."""
    canary = state.canary
    state = enter_phase(state, Phase.REPLACING, at, f"{canary.green.name} gets its share")
    return request_effect(state, route_to((*state.fleet.running, *canary.greens)))


def on_observed(_: Rules, state: State, event: Observed) -> Transition:
    """Count the new servers' requests as exposed until the outcome is known."""
    return keep_alive(count_exposed(state, event), event.at)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """Roll back when a serving server is lost; the old server that drains may end.

    If green is the only server left, it carries the traffic until an old one is restored.
    """
    old, canary, fleet = server_to_replace(state), state.canary, state.fleet
    drains = state.phase is Phase.DRAINING and old is not None and event.server == old.name
    if drains and old is not None and old.replicas == 1:
        return without_effects(state)
    is_newest = is_green(canary, event)
    if not event.gone and not is_newest:
        return without_effects(state)
    why = f"{event.server} was lost: {event.why}"
    alone = not (fleet.running or canary.earlier_greens)
    if not is_newest and alone and can_serve(state, canary):
        return restore(rules, state, event.at, why)
    is_new = any(server.name == event.server for server in canary.greens)
    result = result_of_loss(event) if is_new else "undecided"
    return roll_back(state, event.at, why, event.log, hung=is_newest, result=result)
