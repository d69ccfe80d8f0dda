"""Knobs that change while a server runs: which changes need no restart, which values are in force. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flettner.agent.domain.effects import Effect, KeepKnobs, SetKnobs
from flettner.agent.domain.events import Event, Observed
from flettner.agent.domain.model import Server
from flettner.agent.domain.state import State
from flettner.vllm_facts.values import Knob, Setting, Value, as_number

HOT_FIRST = frozenset({"hot", "auto", "swap"})
"""Strategies with which servers that run take a change if they can; "swap" would be an outage."""

Transition = tuple[State, tuple[Effect, ...]]


def why_not_hot(servers: Sequence[Server], to: Mapping[Knob, Value], number: tuple[int, int]) -> str:
    """Why the change needs a restart; empty if each of the servers takes it while it runs.

    `number`: epoch and number of an effect that would change it now.
    """
    for server in servers:
        if server.hot is None:
            return f"the limits of {server.name} cannot be changed while it runs (docs/live-limits.md)"
        if server.hot.number is not None and server.hot.number >= number:
            return (
                f"another program has set the limits of {server.name}, under the number {server.hot.number}"
            )
        for knob, value in to.items():
            if knob not in server.hot.limits:
                return f"{knob} cannot be changed while {server.name} runs"
            if not _is_within(value, server.hot.limits[knob]):
                low, high = server.hot.limits[knob]
                return f"{knob} can be {low:g} to {high:g} while {server.name} runs, not {value}"
    return "" if servers else "no server runs that could be changed"


def hot_values(servers: Sequence[Server], setting: Setting) -> dict[Knob, Value]:
    """What to set so that servers run with this setting. A value out of range is that of the start."""
    ranges = [server.hot.limits for server in servers if server.hot is not None]
    return {
        knob: value
        for knob, value in setting.items()
        if ranges and all(knob in limits and _is_within(value, limits[knob]) for limits in ranges)
    }


def with_kept_values(knobs: SetKnobs | None, recorded: Server, running: Server) -> Server:
    """The found server, as it runs once it has its values again: those are lost when it starts again.

    Only its hot knobs differ then, and their values are those of its start, or of the change that was under
    way. Values that a third party has set, or other flags at its start, stay as found.
    """
    hot = recorded.hot
    if knobs is None or hot is None or has_drifted(knobs, running):
        return running
    differing = [
        knob
        for knob in {*recorded.setting, *running.setting}
        if recorded.setting.get(knob) != running.setting.get(knob)
    ]
    known = all(
        knob in hot.limits
        and (_is_of_start(running, knob, recorded) or running.setting.get(knob) == knobs.values.get(knob))
        for knob in differing
    )
    return replace(running, setting=recorded.setting) if known else running


def setting_to_start(knobs: SetKnobs | None, old: Server) -> Setting:
    """The setting with which a successor starts; it has the values that were set since when it is in place.

    No server has started with those so far, and a start with less bounds what can be set later.
    """
    kept = knobs is not None and old.name in {server.name for server in knobs.servers}
    if not kept or old.hot is None or has_drifted(knobs, old):
        return old.setting
    set_later = old.hot.limits.keys() & old.setting.keys() & old.hot.start.keys()
    return {**old.setting, **{knob: old.hot.start[knob] for knob in set_later}}


def keep_at_successor(
    knobs: SetKnobs | None, old: Server, successor: Server
) -> tuple[SetKnobs | None, Server]:
    """The change in force and the server that takes the place of the old one, as it runs once it has it."""
    if successor.name != old.name and successor.hot is None:
        return knobs, successor
    kept = with_kept_values(knobs, old, successor)
    if knobs is None:
        return None, kept
    servers = tuple(kept if server.name == old.name else server for server in knobs.servers)
    return replace(knobs, servers=servers), kept


def has_drifted(knobs: SetKnobs | None, running: Server) -> bool:
    """Whether a third party has set values since."""
    number = running.hot.number if running.hot is not None else None
    return knobs is not None and number is not None and number > (knobs.epoch, knobs.number)


def keep_knobs(moved: Transition, event: Event) -> Transition:
    """Every second, repeat the last change of the servers that run: it renews its lease."""
    state, effects = moved
    if state.knobs is None or not isinstance(event, Observed) or state.mode == "advise":
        return moved
    fleet = {server.name: server for server in state.fleet.servers}
    servers = tuple(fleet[server.name] for server in state.knobs.servers if server.name in fleet)
    if not servers:
        return replace(state, knobs=None), effects
    running = tuple(server for server in servers if server in state.fleet.running)
    if isinstance(state.effects.awaited, SetKnobs) or not running:
        return moved
    renewal: Effect = KeepKnobs(change=replace(state.knobs, servers=running))
    return state, (*effects, renewal)


def _is_of_start(running: Server, knob: Knob, recorded: Server) -> bool:
    start = recorded.hot.start.get(knob) if recorded.hot is not None else None
    return running.setting.get(knob) in (None, start)


def _is_within(value: Value, limits: tuple[float, float]) -> bool:
    number = as_number(value)
    return number is not None and limits[0] <= number <= limits[1]
