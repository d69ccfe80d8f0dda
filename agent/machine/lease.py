"""Keeping the split in force: renewing the lease and retrying failed effects."""

from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.effects import Drain, KeepAlive, Retire, Route, Stop
from flettner.agent.domain.events import Drained, EffectFailed, Routed
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.transitions import (
    LONGEST_PAUSE,
    Rules,
    Transition,
    repeat_effect,
    request_effect,
    retry_later,
    without_effects,
)


def keep_alive(state: State, at: datetime) -> Transition:
    """Every second: retry a failed effect that is due, else renew the route. Advise mode writes nothing."""
    if state.mode == "advise":
        return without_effects(state)
    if (
        state.effects.awaited is not None
        and state.effects.retry_at is not None
        and is_due(at, state.effects.retry_at, LONGEST_PAUSE)
    ):
        return repeat_effect(state)
    if state.split.route is not None and not isinstance(state.effects.awaited, Route):
        return state, (KeepAlive(route=state.split.route),)
    return without_effects(state)


def is_due(at: datetime, then: datetime, longest: timedelta) -> bool:
    """Whether `then` has passed, or lies further ahead than `longest` because the clock was set back."""
    return at >= then or at < then - longest


def on_routed(_: Rules, state: State, _event: Routed) -> Transition:
    """The split requested at the start is in force."""
    return without_effects(replace(state, effects=replace(state.effects, awaited=None, tries=0)))


def on_drained(_: Rules, state: State, event: Drained) -> Transition:
    """Stop a drained server whose slot green takes, so that it can start again; retire any other."""
    effect = state.effects.awaited_as(Drain)
    canary = state.canary
    note = f"{effect.server.name} drained"
    if event.open:
        note += f", {event.open} requests open: those without an answer so far are tried at another server"
        undrained = {**canary.undrained, effect.server.name: event.open}
        state = replace(state, rollout=replace(canary, undrained=undrained, undrained_at=event.at))
    state = replace(state, note=note)
    following = Stop if state.phase is Phase.DRAINING else Retire
    return request_effect(state, following(number=0, server=effect.server))


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    """Retry the same effect after a pause."""
    return without_effects(retry_later(state, event.at, event.why))
