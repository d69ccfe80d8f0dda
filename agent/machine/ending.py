"""PROMOTING, ROLLING_BACK and RESTORING: one server drains and goes, the other stays."""

from dataclasses import replace
from datetime import timedelta

from agent.arm import Arm
from agent.effects import Drain, Launch, Retire, Route
from agent.events import Aborted, Drained, EffectFailed, Launched, Observed, Retired, Routed, ServerLost
from agent.machine.moves import (
    Moved,
    Rules,
    all_to,
    ask,
    awaited,
    blue_is_gone,
    enter,
    is_green,
    later,
    launch_successor,
    remember,
    restore,
    roll_back,
    stay,
)
from agent.machine.serving import keep_alive
from agent.model import Server
from agent.state import Phase, State

HUNG_DRAIN_S = 2.0  # a server that answers nothing: its open requests end, or are retried, when it is gone
RESTORE_TRIES = 5


def leaving(state: State) -> Server | None:
    return state.blue if state.phase is Phase.PROMOTING else state.green


def staying(state: State) -> Server | None:
    return state.green if state.phase is Phase.PROMOTING else state.blue


def count(_: Rules, state: State, event: Observed) -> Moved:
    """Green's requests that end after the decision were exposed too."""
    if state.rollout is not None and state.green is not None:
        late = event.arms.get(state.green.name, Arm())
        state = replace(state, rollout=replace(state.rollout, exposed=state.rollout.exposed + late))
    return keep_alive(state, event.at)


def routed(rules: Rules, state: State, event: Routed) -> Moved:
    """First split: the leaving server drains. Last split, without it: done."""
    gone, rollout = leaving(state), state.rollout
    if not awaited(state, event.number) or rollout is None:
        return stay(state)
    if gone is not None and isinstance(state.awaiting, Route) and gone in state.awaiting.servers:
        hurry = state.phase is Phase.ROLLING_BACK and rollout.hung
        draining = replace(state, note=f"{gone.name} gets no new request; those it has may end")
        deadline_s = HUNG_DRAIN_S if hurry else rollout.plan.drain_s
        return ask(draining, Drain(number=0, server=gone, deadline_s=deadline_s))
    return done(rules, state, event)


def drained(_: Rules, state: State, event: Drained) -> Moved:
    gone = leaving(state)
    if gone is None or state.rollout is None or not awaited(state, event.number):
        return stay(state)
    rollout = replace(state.rollout, lost=state.rollout.lost + event.lost)
    note = f"{gone.name} is drained, {event.lost} requests lost"
    return ask(replace(state, rollout=rollout, note=note), Retire(number=0, server=gone))


def retired(rules: Rules, state: State, event: Retired) -> Moved:
    """The server is gone; the proxy forgets it, if it ever knew it."""
    kept, gone = staying(state), leaving(state)
    if kept is None or not awaited(state, event.number):
        return stay(state)
    if state.route is not None and gone is not None and gone.name in state.route.weights:
        return ask(replace(state, note=f"{gone.name} is gone"), all_to(kept))
    return done(rules, state, event)


def done(rules: Rules, state: State, event: Routed | Retired) -> Moved:
    rollout, suggestion = state.rollout, state.suggestion
    if rollout is None or suggestion is None:
        return stay(state)
    if state.phase is Phase.ROLLING_BACK:
        state = replace(state, green=None, awaiting=None, rollout=replace(rollout, ended_at=event.at))
        cooling = enter(state, Phase.COOLDOWN, event.at, f"rolled back: {rollout.why}")
        return stay(replace(cooling, until=event.at + timedelta(seconds=rules.guard.cooldown_s)))
    why = rollout.why
    promoted = replace(rollout, outcome="promoted", ended_at=event.at)
    state = replace(state, blue=state.green, green=None, awaiting=None, rollout=promoted)
    state = remember(state, event.at, "promoted", why)
    return stay(enter(state, Phase.OBSERVING, event.at, why))


def failed(_: Rules, state: State, event: EffectFailed) -> Moved:
    """Before blue drains there is a way back; after it, and on the way back, only on."""
    if not awaited(state, event.number):
        return stay(state)
    if state.phase is Phase.PROMOTING and way_back(state):
        why = f"could not promote: {event.why}"
        return roll_back(state, event.at, why, event.log, result="undecided")
    return stay(later(state, event.at, event.why))


def way_back(state: State) -> bool:
    """Blue still runs and the proxy still knows it."""
    return (
        state.blue is not None
        and not blue_is_gone(state)
        and state.route is not None
        and state.blue.name in state.route.weights
        and not isinstance(state.awaiting, Retire)
    )


def abort(_: Rules, state: State, event: Aborted) -> Moved:
    """A person's abort wins for as long as there is a way back."""
    if not way_back(state):
        return stay(state)
    return roll_back(state, event.at, f"aborted by {event.actor}: {event.reason}", result="denied")


def lost_while_promoting(rules: Rules, state: State, event: ServerLost) -> Moved:
    """Green lost: back, or a new server with blue's setting. A lost blue was on its way out."""
    if not is_green(state, event):
        return stay(state)
    if way_back(state):
        return roll_back(state, event.at, f"green: {event.why}", event.log, hung=True)
    if not event.gone:
        return stay(replace(state, note=f"{event.server}: {event.why}"))
    return restore(rules, state, event.at, f"{event.server}: {event.why}")


def lost_while_rolling_back(rules: Rules, state: State, event: ServerLost) -> Moved:
    if not blue_is_gone(state) or is_green(state, event):
        return stay(state)
    return restore(rules, state, event.at, f"{event.server}: {event.why}")


def cleared(rules: Rules, state: State, event: Retired) -> Moved:
    """What the old process held is free again."""
    return launch_successor(rules, state) if awaited(state, event.number) else stay(state)


def restarted(_: Rules, state: State, event: Launched) -> Moved:
    """The new blue takes over; a green that served meanwhile drains as after any take-back."""
    if not awaited(state, event.number):
        return stay(state)
    state = replace(state, blue=event.server)
    if state.green is None:
        return ask(state, all_to(event.server))
    note = f"{event.server.name} takes over from {state.green.name}"
    back = enter(state, Phase.ROLLING_BACK, event.at, note)
    return ask(back, all_to(event.server, state.green))


def restored(_: Rules, state: State, event: Routed) -> Moved:
    if not awaited(state, event.number) or state.blue is None:
        return stay(state)
    back = replace(state, awaiting=None)
    return stay(enter(back, Phase.OBSERVING, event.at, f"{state.blue.name} serves again"))


def lost_while_restoring(rules: Rules, state: State, event: ServerLost) -> Moved:
    """The successor is lost before it had traffic: once more. A green that served meanwhile: wait."""
    if is_green(state, event) and event.gone:
        return stay(replace(state, green=None))
    if blue_is_gone(state) and isinstance(state.awaiting, Route):
        return restore(rules, state, event.at, f"{event.server}: {event.why}")
    return stay(state)


def not_restored(rules: Rules, state: State, event: EffectFailed) -> Moved:
    """A split is asked for until it is made, an old process that will not go is left, a start has tries."""
    if not awaited(state, event.number):
        return stay(state)
    tried = state.tries + 1 >= RESTORE_TRIES
    if tried and isinstance(state.awaiting, Retire):
        return launch_successor(rules, replace(state, tries=0))
    if tried and isinstance(state.awaiting, Launch) and state.green is None:
        halted = replace(state, awaiting=None)
        return stay(enter(halted, Phase.HALTED, event.at, f"no server could be started: {event.why}"))
    return stay(later(state, event.at, event.why))
