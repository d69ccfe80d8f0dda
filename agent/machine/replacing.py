"""DRAINING and REPLACING: new servers take the slots of the old ones, one at a time.

Of an old server with replicas one at a time ends, and the new server in its slot gets one more.
"""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.effects import Drain, Launch, Stop
from flettner.agent.domain.events import EffectFailed, Observed, Routed, ServerLost, Stopped
from flettner.agent.domain.model import Server
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
    green = state.green
    return next((s for s in state.fleet.servers if green is not None and s.name == green.like), None)


def drain_old_server(state: State, at: datetime, why: str) -> Transition:
    """Move the traffic of the old server, or of one replica, to the remaining ones.

    Without any the route is closed.
    """
    old, rollout = server_to_replace(state), state.rollout
    if old is None or rollout is None:
        raise AssertionError(f"no slot to free in {state.phase}")
    left = replace(old, replicas=old.replicas - 1)
    remaining = [
        left if s.name == old.name else s for s in state.fleet.running if s.name != old.name or left.replicas
    ]
    serving = [server for server in state.greens if server.address]
    what = f"a replica of {old.name}" if left.replicas else old.name
    state = enter_phase(state, Phase.DRAINING, at, f"{why}: {what} frees its slot for a new server")
    return request_effect(state, route_to((*remaining, *serving), old, closed_s=rollout.outage_s))


def on_routed(_: Rules, state: State, event: Routed) -> Transition:
    old, rollout = server_to_replace(state), state.rollout
    if old is None or rollout is None or not state.effects.is_awaited(event.number):
        return without_effects(state)
    if (
        state.split.planned is not None
        and state.split.route is not None
        and state.split.route.weights.get(old.name)
    ):
        why = f"{old.name} cannot free its slot: {describe_failures(state)}"
        return roll_back(state, event.at, why, result="undecided")
    if old.replicas > 1:
        return request_effect(state, Stop(number=0, server=old, keep=old.replicas - 1))
    return request_effect(state, Drain(number=0, server=old, deadline_s=rollout.plan.drain_s))


def on_stopped(_: Rules, state: State, event: Stopped) -> Transition:
    """The slot and its memory are free: launch the new server, or one more of its replicas."""
    effect, green, rollout = state.effects.awaited, state.green, state.rollout
    if not isinstance(effect, Stop) or effect.number != event.number or green is None or rollout is None:
        return without_effects(state)
    what = (
        f"{effect.server.name} has {effect.keep} replicas left"
        if effect.keep
        else event.how or "the old server has stopped"
    )
    state = enter_phase(mark_stopped(state, effect), Phase.LAUNCHING, event.at, what)
    wanted = replace(green, replicas=green.replicas + 1) if green.address else green
    return request_effect(state, Launch(number=0, server=wanted, deadline_s=rollout.plan.start_s))


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    if not state.effects.is_awaited(event.number):
        return without_effects(state)
    return roll_back(state, event.at, event.why, event.log, result="undecided")


def replace_next(state: State, at: datetime, why: str) -> Transition | None:
    """Replace the next replica or old server; None if none is left, or the last one is the control."""
    if state.fleet.replica_count == 1 and keeps_control(state):
        return None
    if may_give_replica(state):
        return drain_old_server(state, at, why)
    taken = {*state.fleet.stopped, *(server.like for server in state.greens)}
    left = [server for server in state.fleet.running if server.name not in taken]
    if not left or state.green is None:
        return None
    state, name = name_next_server(replace(state, crew=state.greens))
    old, first = left[-1], state.crew[0]
    green = Server(name=name, setting=first.setting, like=old.name)
    return drain_old_server(replace(state, green=green), at, why)


def may_give_replica(state: State) -> bool:
    """Whether the newest server takes one more replica of the old one whose slot it has.

    With surge the last replica of the first old server to be replaced stays as the control.
    """
    old, rollout = server_to_replace(state), state.rollout
    if old is None or rollout is None or old not in state.fleet.running:
        return False
    control = rollout.strategy == "surge" and state.greens[0].like == old.name
    return old.replicas > control


def keeps_control(state: State) -> bool:
    """Whether the last old server serves until the hold step has passed; with surge one does anyway."""
    rollout = state.rollout
    return rollout is not None and rollout.strategy == "replace" and not rollout.held


def route_to_newcomer(state: State, at: datetime) -> Transition:
    """Give a warm new server an equal share."""
    if state.green is None:
        return without_effects(state)
    state = enter_phase(state, Phase.REPLACING, at, f"{state.green.name} gets its share")
    return request_effect(state, route_to((*state.fleet.running, *state.greens)))


def on_observed(_: Rules, state: State, event: Observed) -> Transition:
    """Count the new servers' requests as exposed until the outcome is known."""
    return keep_alive(count_exposed(state, event), event.at)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """Roll back when a serving server is lost; the old server that drains may end.

    If green is the only server left, it carries the traffic until an old one is restored.
    """
    old = server_to_replace(state)
    leaving = state.phase is Phase.DRAINING and old is not None and event.server == old.name
    if (leaving and old is not None and old.replicas == 1) or (not event.gone and not is_green(state, event)):
        return without_effects(state)
    why = f"{event.server} was lost: {event.why}"
    if (
        not is_green(state, event)
        and not (state.fleet.running or state.crew)
        and can_serve(state, state.green)
    ):
        return restore(rules, state, event.at, why)
    newcomer = event.server in {server.name for server in state.greens}
    result = result_of_loss(event) if newcomer else "undecided"
    return roll_back(state, event.at, why, event.log, hung=is_green(state, event), result=result)
