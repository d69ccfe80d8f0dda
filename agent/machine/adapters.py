"""Adapters that clients load while servers run: every server of a rollout serves all of them. Pure.

vLLM keeps them in memory only, so a new server has none but those of its flags.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flettner.agent.domain.effects import KeepAdapters
from flettner.agent.domain.events import AdaptersRead, Event, Launched, Observed, ServerLost
from flettner.agent.domain.model import Adapter, Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.upgrade import MODEL, SERVED_NAME
from flettner.agent.machine.transitions import IDLE, Transition


def record_adapters(state: State, event: Event) -> State:
    """Record what a server serves, and what the fleet's clients get.

    In a rollout a difference to the server's last list is a load or an unload, meant for all; but one that
    exited, or has no clients any more, has lost its own. Else the fleet's are those of any of its servers:
    one that its owner has started again has lost its own, also if it was lost in a rollout that ended since.
    """
    if isinstance(event, Observed):
        return _forget_lost_adapters(state)
    if isinstance(event, ServerLost) and is_rolling(state):
        return with_adapters(state, event.server, ())
    before = {server.name: server for server in state.reachable}
    if (
        not isinstance(event, AdaptersRead)
        or event.server not in before
        or event.server == state.effects.ending  # the operator's workload begins anew under its name
    ):
        return state
    listed = with_adapters(state, event.server, event.adapters)
    adapters = _changed(state.fleet.adapters, before[event.server].adapters, event.adapters)
    if not is_rolling(state):
        adapters = _by_name((*_served_adapters(listed), *event.adapters))
    return replace(listed, fleet=replace(listed.fleet, adapters=adapters))


def is_rolling(state: State) -> bool:
    """Whether a rollout has servers of its own, or is about to stop some."""
    canary = state.rollout
    if state.phase is Phase.SAVING:
        return True
    return isinstance(canary, Canary) and canary.ended_at is None and bool(canary.greens)


def _changed(
    adapters: Iterable[Adapter], before: Sequence[Adapter], now: Sequence[Adapter]
) -> tuple[Adapter, ...]:
    """The adapters after those of one server have changed so."""
    dropped = {adapter.name for adapter in before} - {adapter.name for adapter in now}
    rest = (adapter for adapter in adapters if adapter.name not in dropped)
    return _by_name((*rest, *(adapter for adapter in now if adapter not in before)))


def _forget_lost_adapters(state: State) -> State:
    """No later rollout waits for an adapter that no server has had since the last one ended.

    A server that exited or fails is replaced by one with the fleet's adapters: they are kept for that long.
    """
    if state.phase not in IDLE or is_rolling(state) or state.fleet.exited or state.failing:
        return state
    served = _by_name(_served_adapters(state))
    if served == state.fleet.adapters:
        return state
    return replace(state, fleet=replace(state.fleet, adapters=served))


def _served_adapters(state: State) -> list[Adapter]:
    return [adapter for server in state.fleet.servers for adapter in server.adapters]


def _by_name(adapters: Iterable[Adapter]) -> tuple[Adapter, ...]:
    """One of each name, the last."""
    named = {adapter.name: adapter for adapter in adapters}
    return tuple(named[name] for name in sorted(named))


def with_adapters(state: State, name: str, adapters: tuple[Adapter, ...]) -> State:
    """The state with what the server of this name serves."""

    def update(servers: tuple[Server, ...]) -> tuple[Server, ...]:
        return tuple(replace(each, adapters=adapters) if each.name == name else each for each in servers)

    canary = state.rollout
    if isinstance(canary, Canary):
        canary = replace(canary, greens=update(canary.greens))
    return replace(state, fleet=replace(state.fleet, servers=update(state.fleet.servers)), rollout=canary)


def missing_adapters(state: State, server: Server) -> tuple[Adapter, ...]:
    """The fleet's adapters that the server does not serve, as far as is known."""
    return tuple(adapter for adapter in state.fleet.adapters if adapter not in server.adapters)


def list_models(server: Server) -> tuple[str, ...]:
    """The names that clients may ask the server for: those of its model, and its adapters."""
    named = server.setting.get(SERVED_NAME) or server.setting.get(MODEL) or ""
    return (*str(named).split(), *(adapter.name for adapter in server.adapters))


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
    if not is_rolling(state) or not isinstance(event, Observed) or state.mode == "advise":
        return moved
    names = {adapter.name for adapter in state.fleet.adapters}
    for server in state.reachable:
        load = missing_adapters(state, server)
        unload = tuple(adapter.name for adapter in server.adapters if adapter.name not in names)
        if (load or unload) and server.name not in state.fleet.exited:
            effects = (*effects, KeepAdapters(server=server, load=load, unload=unload))
    return state, effects
