"""PROMOTING: the new servers carry all traffic; the old ones drain and are retired.

Until the first old server is retired, a new server that fails is rolled back.
"""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.effects import Drain, Retire
from flettner.agent.domain.events import Aborted, EffectFailed, Observed, Retired, Routed, ServerLost
from flettner.agent.domain.model import Server
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.failing import failing_green
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.restoring import TRIES, missing_server, restore
from flettner.agent.machine.rolling_back import leave_failing_green, result_of_loss, roll_back
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    add_retirement,
    await_nothing,
    count_exposed,
    enter_phase,
    is_green,
    remember_outcome,
    request_effect,
    retry_later,
    without_effects,
)


def promote(state: State, at: datetime, why: str) -> Transition:
    """Route all traffic to the new servers and keep the reason in the rollout."""
    promoted = replace(state, rollout=replace(state.canary, why=why))
    state = enter_phase(promoted, Phase.PROMOTING, at, why)
    return request_effect(state, route_to(running_greens(state), *state.fleet.running))


def running_greens(state: State) -> tuple[Server, ...]:
    return tuple(server for server in state.greens if server.name not in state.fleet.exited)


def on_observed(_: Rules, state: State, event: Observed) -> Transition:
    """Roll back while that is possible if a new server fails and an old one does not."""
    state = count_exposed(state, event)
    if can_roll_back(state) and (failing := failing_green(state)):
        return leave_failing_green(state, event.at, *failing)
    return keep_alive(state, event.at)


def next_to_retire(state: State) -> Server | None:
    """The next old server to retire; None once the new servers are the fleet."""
    return state.fleet.servers[-1] if state.canary.greens and state.fleet.servers else None


def on_routed(rules: Rules, state: State, event: Routed) -> Transition:
    """The first split is in force: retire the old servers. The last one, without them, ends the rollout."""
    old = next_to_retire(state)
    return finish_promotion(rules, state, event.at) if old is None else release(state, old)


def release(state: State, old: Server) -> Transition:
    """Drain an old server; retire it at once if it was stopped and cannot have open requests."""
    if old.name not in state.fleet.stopped:  # an exited one too: it may have been started again meanwhile
        draining = replace(state, note=f"{old.name} gets no new requests; its open requests may end")
        return request_effect(draining, Drain(number=0, server=old, deadline_s=state.canary.plan.drain_s))
    return request_effect(state, Retire(number=0, server=old))  # so that nothing restarts it


def on_retired(_: Rules, state: State, _event: Retired) -> Transition:
    effect = state.effects.awaited_as(Retire)
    return remove_old_server(replace(state, note=f"{effect.server.name} is retired"), effect.server)


def remove_old_server(state: State, old: Server) -> Transition:
    """Remove one old server; after the last one the new servers are the fleet."""
    fleet = state.fleet.without(old.name)
    if fleet.servers:
        return release(replace(state, fleet=fleet), fleet.servers[-1])
    running = running_greens(state)
    exited = [server for server in state.greens if server not in running]
    fleet = replace(fleet, servers=(*running, *exited), stopped=())
    state = replace(state, fleet=fleet, rollout=replace(state.canary, greens=()))
    return request_effect(state, route_to(running or fleet.servers[:1]))


def finish_promotion(rules: Rules, state: State, at: datetime) -> Transition:
    canary = replace(state.canary, outcome="promoted", ended_at=at)
    state = replace(await_nothing(state), rollout=canary)
    state = remember_outcome(state, canary.suggestion, at, "promoted", canary.why)
    if missing_server(state) is not None:
        return restore(rules, state, at, canary.why)
    return without_effects(enter_phase(state, Phase.OBSERVING, at, canary.why))


def can_roll_back(state: State) -> bool:
    """Whether each old server still runs or can be started again, so that none is retired yet."""
    if not state.greens or isinstance(state.effects.awaited, Retire):
        return False
    left = {*state.fleet.stopped, *(server.name for server in state.fleet.running)}
    return left == state.canary.replicas.keys()


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    """Retry after a pause: a failing proxy says nothing of green. After TRIES roll back while possible."""
    tried = state.effects.tries + 1 >= TRIES
    if tried and can_roll_back(state):
        why = f"could not promote: {event.why}"
        return roll_back(state, event.at, why, event.log, result="undecided")
    if tried and isinstance(state.effects.awaited, Retire):
        old = state.effects.awaited.server
        state, effects = add_retirement(remove_old_server(state, old), old)
        return replace(state, note=f"{old.name} could not be retired: {event.why}"), effects
    return without_effects(retry_later(state, event.at, event.why))


def abort(_: Rules, state: State, event: Aborted) -> Transition:
    """An abort rolls back for as long as that is possible."""
    if not can_roll_back(state):
        return without_effects(state)
    return roll_back(state, event.at, f"aborted by {event.actor}", result="aborted", reason=event.reason)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """A new server was lost: roll back, or continue with the remaining ones, or start a successor.

    The loss of an old server changes nothing: it was to be retired.
    """
    serving = state.greens or state.fleet.servers
    if event.server not in {server.name for server in serving}:
        return without_effects(state)
    if can_roll_back(state):
        hung, result = is_green(state.canary, event), result_of_loss(event)
        return roll_back(state, event.at, f"green: {event.why}", event.log, hung=hung, result=result)
    remaining = [server for server in serving if server.name not in (*state.fleet.exited, event.server)]
    if not event.gone or remaining:
        return without_effects(replace(state, note=f"{event.server}: {event.why}"))
    result = result_of_loss(event) or "failed"
    return restore(rules, state, event.at, f"{event.server}: {event.why}", result=result)
