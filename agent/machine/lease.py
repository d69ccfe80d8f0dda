"""Keeping traffic where it is: the lease, the proxy's life, and asking again for what failed."""

from dataclasses import replace
from datetime import datetime, timedelta

from agent.domain.effects import Drain, Effect, KeepAlive, Retire, Route, Stop
from agent.domain.events import Drained, EffectFailed, Observed, Retired, Routed
from agent.domain.request_counts import RequestCounts
from agent.domain.state import Phase, State
from agent.machine.routes import without
from agent.machine.transitions import (
    LONGEST_PAUSE,
    Moved,
    Rules,
    also_retire,
    ask,
    ask_again,
    awaited,
    later,
    stay,
)


def keep_alive(state: State, at: datetime) -> Moved:
    """Once a second: try again what is due, renew what is in force. In advise mode nothing is written."""
    if state.mode == "advise":
        return stay(state)
    if state.awaiting is not None and state.retry_at is not None and due(at, state.retry_at, LONGEST_PAUSE):
        return ask_again(state)
    if state.route is not None and not isinstance(state.awaiting, Route):
        return state, (KeepAlive(route=state.route),)
    return stay(state)


def due(at: datetime, then: datetime, longest: timedelta) -> bool:
    """It is time; or `then` is further away than was ever waited for: the clock was set back."""
    return at >= then or at < then - longest


RECENT = timedelta(seconds=60)
STEADY_TICKS = 240  # an hour of one server: known so well, it takes the place of any older knowledge


def remembering(state: State, event: Observed) -> State:
    """Count the fleet's requests of this minute and the one before: what a swap is held up to.

    And keep how steady its servers are: the first minutes of a new process do not displace hours.
    """
    better = {
        stream: new
        for stream, new in event.calibration.items()
        if (old := state.calibration.get(stream)) is None or new.ticks >= min(old.ticks, STEADY_TICKS)
    }
    if better:
        state = replace(state, calibration={**state.calibration, **better})
    new = sum((event.arms.get(server.name, RequestCounts()) for server in state.standing), RequestCounts())
    if state.recent_since is None or event.at - state.recent_since > RECENT:
        return replace(state, recent=(new, *state.recent[:1]), recent_since=event.at)
    return replace(state, recent=(state.recent[0] + new, *state.recent[1:])) if new.asked else state


def lately(state: State, at: datetime) -> tuple[RequestCounts, float]:
    """What the fleet's requests did in the last one to two minutes, and in how many seconds."""
    if state.recent_since is None:
        return RequestCounts(), 0.0
    earlier = RECENT * (len(state.recent) - 1)
    return sum(state.recent, RequestCounts()), (at - state.recent_since + earlier).total_seconds()


def spare_the_gone(moved: Moved) -> Moved:
    """No share stays with a server that has ended while others carry traffic."""
    state, effects = moved
    route = state.route
    if state.mode == "advise" or route is None or not any(route.weights.get(name) for name in state.gone):
        return moved
    rest = without(route, state.gone)
    if rest is None:
        return moved
    return reroute(state, effects, rest)


LEAVE_AGAIN = timedelta(seconds=30)


def left(state: State, event: Retired) -> State:
    kept = tuple(effect for effect in state.leaving if effect.number != event.number)
    return state if kept == state.leaving else replace(state, leaving=kept)


def leave_again(moved: Moved, at: datetime) -> Moved:
    """Who is still on the side is asked for once more; but not one that serves again."""
    state, effects = moved
    present = {server.name for server in state.present}
    waiting = [effect.server for effect in state.leaving if effect.server.name not in present]
    if state.mode == "advise" or not waiting:
        return (replace(state, leaving=()) if state.leaving and not waiting else state), effects
    if state.leaving_asked is None or not due(at, state.leaving_asked + LEAVE_AGAIN, LEAVE_AGAIN):
        return replace(state, leaving_asked=state.leaving_asked or at), effects
    moved = replace(state, leaving=(), leaving_asked=at), effects
    for server in waiting:
        moved = also_retire(moved, server)
    return moved


def where_they_are(moved: Moved) -> Moved:
    """A server that came back under another address gets its share there."""
    state, effects = moved
    route = state.route
    now = {server.name: server for server in state.present if server.address}
    if state.mode == "advise" or route is None:
        return moved
    if all(s.address == now[s.name].address for s in route.servers if s.name in now):
        return moved
    fresh = replace(route, servers=tuple(now.get(s.name, s) for s in route.servers))
    return reroute(state, effects, fresh)


def reroute(state: State, effects: tuple[Effect, ...], route: Route) -> Moved:
    """Ask for another split in the place of the last one; what else is awaited stays so."""
    numbered = replace(route, number=state.effects + 1)
    awaiting = numbered if isinstance(state.awaiting, Route) else state.awaiting
    kept = tuple(effect for effect in effects if not isinstance(effect, Route | KeepAlive))
    return replace(state, effects=numbered.number, route=numbered, awaiting=awaiting), (*kept, numbered)


def routed(_: Rules, state: State, event: Routed) -> Moved:
    """The split asked for at the start is in force."""
    if not awaited(state, event.number):
        return stay(state)
    return stay(replace(state, awaiting=None, tries=0))


def drained(_: Rules, state: State, event: Drained) -> Moved:
    """It has nothing open any more: it stops, where it gives its place and may come back; else it goes."""
    effect, rollout = state.awaiting, state.rollout
    if not isinstance(effect, Drain) or rollout is None or effect.number != event.number:
        return stay(state)
    state = replace(state, rollout=replace(rollout, lost=rollout.lost + event.lost))
    state = replace(state, note=f"{effect.server.name} is drained, {event.lost} requests lost")
    following = Stop if state.phase is Phase.VACATING else Retire
    return ask(state, following(number=0, server=effect.server))


def try_again(_: Rules, state: State, event: EffectFailed) -> Moved:
    """Past the point where giving up would help: the same effect again after a pause."""
    if not awaited(state, event.number):
        return stay(state)
    return stay(later(state, event.at, event.why))
