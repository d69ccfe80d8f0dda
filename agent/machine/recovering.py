"""AgentStarted: what is found running, against the journal. The world wins on facts, it on intent."""

from dataclasses import replace

from agent.effects import Launch, Route
from agent.events import AgentStarted
from agent.machine.moves import (
    Moved,
    Rules,
    all_to,
    also_retire,
    ask,
    ask_again,
    close,
    enter,
    promote_alone,
    restore,
    roll_back,
    stay,
)
from agent.machine.rolling_out import take_step
from agent.model import Server
from agent.state import Phase, State

RESUMES = 2  # a canary is resumed so often; a daemon that keeps dying takes it back
UNDECIDED = {Phase.LAUNCHING, Phase.WARMING, Phase.CANARY}
MOVING = {*UNDECIDED, Phase.PROMOTING, Phase.ROLLING_BACK, Phase.RESTORING}


def start(rules: Rules, state: State, event: AgentStarted) -> Moved:
    """Take up the target where the world and the journal left it."""
    state = replace(state, epoch=event.epoch, mode=event.mode)
    found = {server.name: server for server in event.servers}
    if event.mode == "advise":
        return stay(advise_only(state, event, found))
    moved = take_up(rules, state, event, found)
    return without_orphans(moved, found)


def advise_only(state: State, event: AgentStarted, found: dict[str, Server]) -> State:
    """Nothing may be written: adopt what serves; a rollout of another mode waits as it is, which is said."""
    if state.phase in MOVING:
        why = f"a rollout is {state.phase.value} and this is advise mode: start in approve mode to end it"
        return replace(state, note=why)
    blue = serving(state, event, found)
    if blue is None:
        return replace(state, note="no server found: nothing to watch yet")
    return adopt(state, blue)


def take_up(rules: Rules, state: State, event: AgentStarted, found: dict[str, Server]) -> Moved:
    state = replace(state, gone=())
    blue = serving(state, event, found)
    green = found.get(state.green.name) if state.green else None
    if state.phase is Phase.RESTORING and not isinstance(state.awaiting, Route):
        return ask_again(state)
    if blue is None:
        return without_blue(rules, state, event, green)
    changed = state.blue is not None and dict(blue.setting) != dict(state.blue.setting)
    state = adopt(state, blue)
    if state.phase in UNDECIDED and changed:
        return roll_back(state, event.at, f"{state.note}, in the middle of a rollout", result="undecided")
    if state.phase in UNDECIDED:
        return resume(state, event, green)
    if state.phase is Phase.PROMOTING and green is None:
        return roll_back(state, event.at, "green was gone when the daemon started", hung=True)
    if state.phase in MOVING:
        return ask_again(state)
    if state.phase is Phase.HALTED:
        state = enter(state, Phase.OBSERVING, event.at, "started again by an operator")
    return ask(state, all_to(blue))


def serving(state: State, event: AgentStarted, found: dict[str, Server]) -> Server | None:
    """The server in force: the journal's if it runs, else the one with the traffic, else any."""
    if state.blue is not None:
        same_address = [s for s in event.servers if not state.blue.ours and s.address == state.blue.address]
        return found.get(state.blue.name) or (same_address[0] if same_address else None)
    weights = event.weights or {}
    by_weight = sorted(event.servers, key=lambda s: (-weights.get(s.name, 0), s.ours, s.name))
    return by_weight[0] if by_weight else None


def adopt(state: State, blue: Server) -> State:
    """Take the facts as found; an open suggestion for another setting is void."""
    if state.blue is None:
        return replace(state, blue=blue, note=f"adopted {blue.name} at {blue.address}")
    if dict(blue.setting) == dict(state.blue.setting):
        return replace(state, blue=blue)
    note = f"{blue.name} runs other flags than trimtab gave it: adopted as they are"
    return replace(state, blue=blue, suggestion=close(state.suggestion, "superseded"), note=note)


def without_blue(rules: Rules, state: State, event: AgentStarted, green: Server | None) -> Moved:
    """Blue is gone: green, if it is up; else a new server; somebody else's server is left to them."""
    blue, expected = state.blue, state.green
    why = f"{blue.name} was gone when the daemon started" if blue else "no server was running"
    lost = [blue, expected if green is None else None]
    state = replace(state, gone=tuple(server.name for server in lost if server is not None))
    if green is not None and state.phase in {Phase.WARMING, Phase.CANARY}:
        return promote_alone(replace(state, green=green), event.at, f"{why}: green is the only server")
    if green is not None and state.phase is Phase.PROMOTING:
        still_splitting = isinstance(state.awaiting, Route)
        return ask(state, all_to(green)) if still_splitting else ask_again(state)
    if blue is not None and not blue.ours and state.phase not in MOVING:
        return stay(replace(state, note=f"{why}: start it again, trimtab did not stop it"))
    return restore(rules, replace(state, green=green or state.green), event.at, why)


def resume(state: State, event: AgentStarted, green: Server | None) -> Moved:
    """Green is still there: go on, with fresh evidence. Else back."""
    rollout = state.rollout
    if rollout is None:
        return stay(state)
    rollout = replace(rollout, restarts=rollout.restarts + 1, phase_since=event.at)
    state = replace(state, rollout=rollout, green=green or state.green)
    if rollout.restarts > RESUMES:
        why = f"the daemon was restarted {rollout.restarts} times in this rollout"
        return roll_back(state, event.at, why, result="undecided")
    if isinstance(state.awaiting, Launch):
        return ask_again(state)
    if green is None:
        return roll_back(state, event.at, "green was gone when the daemon started", hung=True)
    if state.phase is Phase.CANARY:
        return take_step(state, rollout.step)
    return ask_again(state)


def without_orphans(moved: Moved, found: dict[str, Server]) -> Moved:
    """A server of ours that nobody owns is retired: a crash between naming it and writing it down."""
    state, _ = moved
    owned = {server.name for server in (state.blue, state.green) if server is not None}
    if isinstance(state.awaiting, Launch):
        owned.add(state.awaiting.server.name)
    for name, server in found.items():
        if server.ours and name not in owned:
            moved = also_retire(moved, server)
    return moved
