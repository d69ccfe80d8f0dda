"""Adapters that clients load while servers run: every server of a rollout serves all of them. Pure.

vLLM keeps them in memory only, so a new server has none but those of its flags.
"""

from dataclasses import replace

from flettner.agent.domain.effects import Effect, KeepAdapters
from flettner.agent.domain.events import AdaptersRead, Event, Launched, Observed
from flettner.agent.domain.model import Adapter, Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import State

Transition = tuple[State, tuple[Effect, ...]]


def record_adapters(state: State, event: Event) -> State:
    """Add what a server has loaded since it was last asked to the fleet's; remove what it has dropped."""
    if not isinstance(event, AdaptersRead):
        return state
    servers = {server.name: server for server in state.reachable}
    if event.server not in servers:
        return state
    before = servers[event.server].adapters
    dropped = {adapter.name for adapter in before} - {adapter.name for adapter in event.adapters}
    loaded = [adapter for adapter in event.adapters if adapter not in before]
    replaced = dropped | {adapter.name for adapter in loaded}
    rest = [adapter for adapter in state.fleet.adapters if adapter.name not in replaced]
    adapters = tuple(sorted([*rest, *loaded], key=lambda adapter: adapter.name))
    fleet = replace(state.fleet, servers=_with_adapters(state.fleet.servers, event), adapters=adapters)
    state = replace(state, fleet=fleet)
    if isinstance(state.rollout, Canary):
        state = replace(state, rollout=replace(state.rollout, greens=_with_adapters(state.greens, event)))
    return state


def _with_adapters(servers: tuple[Server, ...], event: AdaptersRead) -> tuple[Server, ...]:
    return tuple(
        replace(server, adapters=event.adapters) if server.name == event.server else server
        for server in servers
    )


def missing_adapters(state: State, server: Server) -> tuple[Adapter, ...]:
    """The fleet's adapters that the server does not serve, as far as is known."""
    return tuple(adapter for adapter in state.fleet.adapters if adapter not in server.adapters)


def describe_missing(state: State) -> str:
    """Which adapters the greens lack; empty if they serve all of the fleet's."""
    return "; ".join(
        f"{server.name} does not serve the adapter {adapter.name} yet"
        for server in state.greens
        for adapter in missing_adapters(state, server)
    )


def refusal(event: Launched) -> str:
    """Why a new server must get no traffic: clients of an adapter would get 404; empty if it may."""
    if not event.refused:
        return ""
    return f"{event.server.name} cannot load what clients use: {'; '.join(event.refused)}"


def keep_adapters(moved: Transition, event: Event) -> Transition:
    """Every second of a rollout, bring each server's adapters to the fleet's.

    A client that loads one through the proxy reaches one server only. Outside rollouts nothing is loaded.
    """
    state, effects = moved
    rollout = state.rollout
    is_rolling = isinstance(rollout, Canary) and rollout.ended_at is None and bool(rollout.greens)
    if not is_rolling or not isinstance(event, Observed) or state.mode == "advise":
        return moved
    names = {adapter.name for adapter in state.fleet.adapters}
    for server in state.reachable:
        load = missing_adapters(state, server)
        unload = tuple(adapter.name for adapter in server.adapters if adapter.name not in names)
        if (load or unload) and server.name not in state.fleet.exited:
            effects = (*effects, KeepAdapters(server=server, load=load, unload=unload))
    return state, effects
