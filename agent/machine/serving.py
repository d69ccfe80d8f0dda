"""Keeping traffic where it is: the lease, the proxy's life, and asking again for what failed."""

from dataclasses import replace
from datetime import datetime

from agent.effects import KeepAlive, Route
from agent.events import EffectFailed, Routed
from agent.machine.moves import Moved, Rules, ask_again, awaited, later, stay
from agent.state import State


def keep_alive(state: State, at: datetime) -> Moved:
    """Once a second: try again what is due, renew what is in force. In advise mode nothing is written."""
    if state.mode == "advise":
        return stay(state)
    if state.awaiting is not None and state.retry_at is not None and at >= state.retry_at:
        return ask_again(state)
    if state.route is not None and not isinstance(state.awaiting, Route):
        return state, (KeepAlive(route=state.route),)
    return stay(state)


def routed(_: Rules, state: State, event: Routed) -> Moved:
    """The split asked for at the start is in force."""
    if not awaited(state, event.number):
        return stay(state)
    return stay(replace(state, awaiting=None, tries=0))


def try_again(_: Rules, state: State, event: EffectFailed) -> Moved:
    """Past the point where giving up would help: the same effect again after a pause."""
    if not awaited(state, event.number):
        return stay(state)
    return stay(later(state, event.at, event.why))
