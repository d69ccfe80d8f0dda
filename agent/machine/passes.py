"""The passes that run at every step, in every phase, before and after the phase's own handler. Pure."""

from dataclasses import replace
from datetime import timedelta

from flettner.agent.domain.effects import Effect, KeepAlive, Route
from flettner.agent.domain.events import Event, Observed, Retired, ServerLost
from flettner.agent.domain.model import Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.lease import is_due
from flettner.agent.machine.open_suggestions import end_all, enter_fitting_phase
from flettner.agent.machine.routes import route_without
from flettner.agent.machine.transitions import Transition, add_retirement, replace_split

LATE = timedelta(seconds=30)  # requests of a green that was rolled back still end
RETIRE_AGAIN = timedelta(seconds=30)


def record_exit(state: State, event: Event) -> State:
    """Track exited servers across phases, so that no route targets them again."""
    if not isinstance(event, ServerLost) or not event.gone:
        return state
    present = {server.name for server in state.servers}
    if event.server == state.effects.stopping or event.server not in present - {*state.fleet.exited}:
        return state
    return replace(state, fleet=state.fleet.with_exited(event.server))


def count_late_requests(state: State, event: Event) -> State:
    """Count the requests of a rolled-back green that end after the rollback as exposed."""
    canary = state.rollout
    if not isinstance(event, Observed) or not isinstance(canary, Canary) or canary.ended_at is None:
        return state
    late = event.arms.get(canary.server)
    if late is None or canary.outcome != "rolled_back" or event.at > canary.ended_at + LATE:
        return state
    return replace(state, rollout=replace(canary, exposed=canary.exposed + late))


def count_lost_requests(state: State, event: Event) -> State:
    """Count the requests that clients lost of those that a retired server still had."""
    canary = state.rollout
    if not isinstance(event, Observed) or not isinstance(canary, Canary):
        return state
    if canary.undrained_at is None or event.at > canary.undrained_at + LATE:
        return state
    every = sum(canary.undrained.values())
    new = every if event.lost is None else sum(event.lost.get(name, 0) for name in canary.undrained)
    lost = min(canary.lost + new, every)
    return state if lost == canary.lost else replace(state, rollout=replace(canary, lost=lost))


def charge_error_budget(state: State, event: Event) -> State:
    """Count every server's requests against the error budget."""
    if not isinstance(event, Observed):
        return state
    return replace(state, budget=state.budget.add(event.at, event.arms.values()))


def end_retirement(state: State, event: Event) -> State:
    """Forget a retirement outside the rollout once it is done."""
    if not isinstance(event, Retired):
        return state
    left = tuple(effect for effect in state.fleet.retiring if effect.number != event.number)
    if left == state.fleet.retiring:
        return state
    return replace(state, fleet=replace(state.fleet, retiring=left))


def record_move(state: State, event: Event) -> State:
    """Leave a server to its owner once it has moved into the place of an adopted one."""
    if not isinstance(event, Retired) or not event.moved:
        return state

    def moved(servers: tuple[Server, ...]) -> tuple[Server, ...]:
        return tuple(
            replace(server, ours=False) if server.name == event.moved else server for server in servers
        )

    state = replace(state, fleet=replace(state.fleet, servers=moved(state.fleet.servers)))
    if isinstance(state.rollout, Canary):
        state = replace(state, rollout=replace(state.rollout, greens=moved(state.greens)))
    return state


def withdraw_if_servers_changed(moved: Transition, event: Event) -> Transition:
    """End the suggestions once the fleet changed: strategy and outage hold for the old fleet."""
    state, effects = moved
    suggestion = next(iter(state.suggestions.pending), None)
    if suggestion is None or state.phase not in {Phase.CHECKING, Phase.PROPOSED}:
        return moved
    now = sorted(server.name for server in state.fleet.running)
    if sorted(suggestion.servers) == now:
        return moved
    asked, there = ", ".join(suggestion.servers), ", ".join(now) or "none"
    why = f"{suggestion.id} was made for {asked}; the servers are now {there}"
    return enter_fitting_phase(end_all(state, why), event.at, why), effects


def drop_routes_to_exited_servers(moved: Transition, _: Event) -> Transition:
    """Move the share of an exited server to the servers that still carry traffic."""
    state, effects = moved
    route = state.split.intended
    if (
        state.mode == "advise"
        or route is None
        or not any(route.weights.get(name) for name in state.fleet.exited)
    ):
        return moved
    rest = route_without(route, state.fleet.exited)
    return moved if rest is None else reroute(state, effects, rest)


def update_addresses_in_route(moved: Transition, _: Event) -> Transition:
    """Route to the new address of a server that was restarted under another one."""
    state, effects = moved
    route = state.split.intended
    now = {server.name: server for server in state.servers if server.address}
    if state.mode == "advise" or route is None:
        return moved
    if all(s.address == now[s.name].address for s in route.servers if s.name in now):
        return moved
    fresh = replace(route, servers=tuple(now.get(s.name, s) for s in route.servers))
    return reroute(state, effects, fresh)


def repeat_retirements(moved: Transition, event: Event) -> Transition:
    """Repeat each unfinished retirement every 30 s; drop the retirement of a server that serves again."""
    if not isinstance(event, Observed):
        return moved
    state, effects = moved
    at = event.at
    present = {server.name for server in state.servers}
    waiting = [effect.server for effect in state.fleet.retiring if effect.server.name not in present]
    if state.mode == "advise" or not waiting:
        if state.fleet.retiring and not waiting:
            state = replace(state, fleet=replace(state.fleet, retiring=()))
        return state, effects
    asked = state.fleet.retiring_asked
    if asked is None or not is_due(at, asked + RETIRE_AGAIN, RETIRE_AGAIN):
        return replace(state, fleet=replace(state.fleet, retiring_asked=asked or at)), effects
    moved = replace(state, fleet=replace(state.fleet, retiring=(), retiring_asked=at)), effects
    for server in waiting:
        moved = add_retirement(moved, server)
    return moved


def forget_absent_servers(moved: Transition, _: Event) -> Transition:
    """Keep exits only of servers that the state still knows."""
    state, effects = moved
    present = {server.name for server in state.servers}
    exited = tuple(name for name in state.fleet.exited if name in present)
    if exited == state.fleet.exited:
        return moved
    return replace(state, fleet=replace(state.fleet, exited=exited)), effects


def reroute(state: State, effects: tuple[Effect, ...], route: Route) -> Transition:
    """Replace the last route by this one; whatever else is awaited is still awaited."""
    state, numbered = replace_split(state, route)
    others = tuple(effect for effect in effects if not isinstance(effect, Route | KeepAlive))
    if isinstance(state.effects.awaited, Route):
        state = replace(state, effects=replace(state.effects, awaited=numbered))
    return state, (*others, numbered)
