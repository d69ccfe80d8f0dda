"""RESTORING: a server of the setting in force has ended: one like it is started."""

from dataclasses import replace
from datetime import datetime

from agent.domain.effects import Launch, Retire, Route
from agent.domain.events import EffectFailed, Launched, Retired, Routed, ServerLost
from agent.domain.model import Server
from agent.domain.state import Phase, State
from agent.machine.routes import over
from agent.machine.transitions import (
    Moved,
    Rules,
    also_retire,
    ask,
    ask_again,
    awaited,
    close,
    enter,
    is_green,
    later,
    led,
    name_next,
    of_fleet,
    remember,
    serves,
    stay,
)

TRIES = 5


def missing(state: State) -> Server | None:
    """A server of the fleet that trimtab stopped, or that it started and that ended.

    Somebody else's is theirs to start again; but when nobody stands, something must serve. One whose place a
    new server still holds comes last: there is no room for it yet.
    """
    stopped = [server for server in state.fleet if server.name in state.vacated]
    gone = [server for server in state.fleet if server.name in state.gone]
    held = {server.like for server in state.newcomers}
    found = [s for s in (*stopped, *gone) if s in stopped or s.ours or not state.standing]
    return min(found, key=lambda server: server.name in held, default=None)


def restore(rules: Rules, state: State, at: datetime, why: str) -> Moved:
    """Start a server like the one that is missing.

    Those that stand, or else a green that serves, keep all the traffic until then; any other green goes, and
    with it the rollout. What the old process left behind is cleared away first: it may hold the GPU's memory.
    """
    state = without_the_retired(state)
    green, rollout, old = state.green, state.rollout, missing(state) or state.blue
    bridging = not state.standing and serves(state, green)
    if rollout is not None and rollout.ended_at is None:
        if rollout.outcome == "running":
            state = remember(state, at, "failed", why)
            rollout = replace(rollout, outcome="rolled_back", why=why)
        rollout = rollout if bridging else replace(rollout, ended_at=at)
    state = replace(state, suggestion=close(state.suggestion, "superseded"), rollout=rollout)
    state = enter(led(state), Phase.RESTORING, at, why)
    if state.standing or (green is not None and bridging):
        carriers = state.standing or tuple(s for s in (green,) if s is not None)
        meanwhile = replace(over(carriers), number=state.effects + 1)
        state = replace(state, effects=meanwhile.number, route=meanwhile)
        state, effects = clear_away(rules, state, old)
        return state, (meanwhile, *effects)
    left = state.newcomers
    moved = clear_away(rules, replace(state, green=None, crew=()), old)
    for server in left:
        moved = also_retire(moved, server)
    return moved


def without_the_retired(state: State) -> State:
    """Who was told to go cannot be called back: it is as good as gone, and nothing is sent there again."""
    effect = state.awaiting
    if not isinstance(effect, Retire) or effect.server.name in state.gone:
        return state
    return replace(state, gone=(*state.gone, effect.server.name))


def clear_away(rules: Rules, state: State, old: Server | None) -> Moved:
    """What is ours of the old server goes before its successor starts; somebody else's is theirs to stop."""
    if old is not None and old.ours and old.name not in state.vacated:
        return ask(state, Retire(number=0, server=old))
    return launch_successor(rules, state)


def launch_successor(rules: Rules, state: State) -> Moved:
    old = missing(state) or state.blue
    if old is not None and old.name in state.vacated:
        return ask(state, Launch(number=0, server=old, deadline_s=rules.plan.start_s))
    state, name = name_next(state)
    # without an old one: as the command says
    fresh = Server(name=name, setting=old.setting if old else {}, like=old.name if old else "")
    return ask(state, Launch(number=0, server=fresh, deadline_s=rules.plan.start_s))


def cleared(rules: Rules, state: State, event: Retired) -> Moved:
    """What the old process held is free again."""
    return launch_successor(rules, state) if awaited(state, event.number) else stay(state)


def restarted(_: Rules, state: State, event: Launched) -> Moved:
    """The successor takes its place, or one that was stopped is back; a green that served drains."""
    effect = state.awaiting
    if not isinstance(effect, Launch) or effect.number != event.number:
        return stay(state)
    known = {server.name for server in state.fleet}
    place = effect.server.name if effect.server.name in known else effect.server.like
    return taken_over(put_back(state, place, event.server), event.at, event.server.name)


def taken_over(state: State, at: datetime, name: str) -> Moved:
    if state.green is None:
        return ask(state, over(state.standing))
    back = enter(state, Phase.ROLLING_BACK, at, f"{name} takes over from {state.green.name}")
    return ask(back, over(state.standing, state.green))


def look_again(state: State, at: datetime) -> Moved:
    """The daemon started, or looked around: who was missing may be back; then its successor is not needed."""
    effect = state.awaiting
    if missing(state) is not None or not state.standing:
        return ask_again(state)
    moved = taken_over(state, at, state.standing[0].name)
    return also_retire(moved, effect.server) if isinstance(effect, Launch) else moved


def put_back(state: State, name: str, server: Server) -> State:
    """`server` in the place of the one of the fleet that is called `name`; it is neither vacated nor gone."""
    fleet = tuple(server if s.name == name else s for s in state.fleet) or (server,)
    return replace(
        state,
        blue=fleet[0],
        peers=fleet[1:],
        vacated=tuple(n for n in state.vacated if n != name),
        gone=tuple(n for n in state.gone if n != name),
    )


def restored(rules: Rules, state: State, event: Routed) -> Moved:
    if not awaited(state, event.number):
        return stay(state)
    state = replace(state, awaiting=None)
    if missing(state) is not None:
        return restore(rules, state, event.at, state.note)
    if state.route is None or not all(state.route.weights.get(server.name) for server in state.standing):
        return ask(state, over(state.standing))
    back = state.standing[-1].name if state.standing else "nobody"
    return stay(enter(state, Phase.OBSERVING, event.at, f"{back} serves again"))


def lost(rules: Rules, state: State, event: ServerLost) -> Moved:
    """The successor is lost before it had traffic: once more. A green that served meanwhile: wait."""
    if is_green(state, event) and event.gone:
        return stay(replace(state, green=None))
    if of_fleet(state, event) and event.gone and isinstance(state.awaiting, Route):
        return restore(rules, state, event.at, f"{event.server}: {event.why}")
    return stay(state)


def failed(rules: Rules, state: State, event: EffectFailed) -> Moved:
    """A split is asked for until it is made, an old process that will not go is left, a start has tries."""
    if not awaited(state, event.number):
        return stay(state)
    tried = state.tries + 1 >= TRIES
    if tried and isinstance(state.awaiting, Retire):
        return launch_successor(rules, replace(state, tries=0))
    if tried and isinstance(state.awaiting, Launch) and state.green is None and not state.standing:
        halted = replace(state, awaiting=None)
        return stay(enter(halted, Phase.HALTED, event.at, f"no server could be started: {event.why}"))
    return stay(later(state, event.at, event.why))
