"""AgentStarted: reconcile the servers found running with the journal.

What is found wins on facts, the journal on intent. With the epoch that is known already the daemon was not
restarted: a third party has changed a server while the daemon ran, and running effects go on.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.effects import KeepAlive, Launch, Route, Stop
from flettner.agent.domain.events import AgentStarted
from flettner.agent.domain.model import PreflightResult, Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine import hot_trial, saving
from flettner.agent.machine.default_plan import configured_plan, plan_for
from flettner.agent.machine.hot_knobs import has_drifted, with_kept_values
from flettner.agent.machine.launching import begin_step, resume_step
from flettner.agent.machine.open_suggestions import end_all, end_check, end_each, end_suggestion
from flettner.agent.machine.promoting import can_roll_back, promote
from flettner.agent.machine.restoring import missing_server, restore
from flettner.agent.machine.rolling_back import roll_back
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.traffic import expected_rate
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    add_retirement,
    choose_blue,
    enter_phase,
    repeat_effect,
    request_effect,
    without_effects,
)

RESUMES = 2  # restarts of the daemon that a rollout survives; after more it is rolled back
UNDECIDED = {Phase.DRAINING, Phase.LAUNCHING, Phase.WARMING, Phase.CANARY, Phase.REPLACING}
MOVING = {*UNDECIDED, Phase.TRIAL, Phase.SAVING, Phase.PROMOTING, Phase.ROLLING_BACK, Phase.RESTORING}

FoundServers = Mapping[str, Server]


def on_started(rules: Rules, state: State, event: AgentStarted) -> Transition:
    """Continue the target with the servers that run, as the journal intends."""
    restarted = event.epoch != state.epoch
    state = replace(state, epoch=event.epoch, mode=event.mode, approval=event.approval)
    if state.phase is Phase.CHECKING:
        state = end_check(state, event.at, "the daemon started while a suggestion was being checked")
    by_name = {server.name: server for server in event.servers}
    if event.mode == "advise":
        return without_effects(adopt_in_advise_mode(state, event, by_name))
    state = end_each(state, "superseded", _why_unchecked, event.at)
    moved = resume_target(rules, state, event, by_name, restarted=restarted)
    return announce_epoch(retire_orphans(moved, by_name))


def _why_unchecked(suggestion: Suggestion) -> str:
    """Why a suggestion that advise mode has left open cannot be approved; empty if it can."""
    if not suggestion.preflight.unchecked:
        return ""
    return f"{suggestion.id} was made in advise mode, without a check by vLLM"


def announce_epoch(moved: Transition) -> Transition:
    """Write this epoch to the proxy at once: it fences off an older daemon and renews the lease."""
    state, effects = moved
    if state.split.route is None or any(isinstance(effect, Route) for effect in effects):
        return moved
    return state, (KeepAlive(route=state.split.route), *effects)


def adopt_in_advise_mode(state: State, event: AgentStarted, by_name: FoundServers) -> State:
    """Adopt the running servers without writing anything; a rollout of another mode is suspended."""
    if state.phase in MOVING:
        why = f"advise mode suspends a rollout ({state.phase.value}): start in approve mode to end it"
        return replace(state, note=why)
    state = choose_blue(merge_found_servers(state, event, by_name))
    return state if state.fleet.running else replace(state, note="no server found: nothing to watch yet")


def resume_target(
    rules: Rules, state: State, event: AgentStarted, by_name: FoundServers, *, restarted: bool
) -> Transition:
    before, knobs = {server.name: server for server in state.fleet.servers}, state.knobs
    state = choose_blue(merge_found_servers(state, event, by_name))
    if hot_trial.is_hot(state) and state.phase in {Phase.TRIAL, Phase.ROLLING_BACK}:
        return hot_trial.resume(rules, state, event.at, drifted=knobs is not None and state.knobs is None)
    changed = [s.name for s in state.fleet.running if before.get(s.name, s).setting != s.setting]
    if (back := saving.resume(rules, state, event.at, tuple(by_name), changed)) is not None:
        return back
    return _resume_with_servers(rules, state, event, by_name, before, changed, restarted=restarted)


def _resume_with_servers(
    rules: Rules,
    state: State,
    event: AgentStarted,
    by_name: FoundServers,
    before: FoundServers,
    changed: Sequence[str],
    *,
    restarted: bool,
) -> Transition:
    """Continue a target whose servers start and stop.

    `before`: the servers as the journal has them. `changed`: those that run with other flags.
    """
    if state.phase is Phase.RESTORING:
        return saving.resume_return(rules, state, event.at)
    if not state.fleet.running and not state.fleet.stopped:
        return recover_without_blue(rules, state, event, by_name)
    if state.phase in UNDECIDED and changed:
        return roll_back(state, event.at, f"{state.note}, in the middle of a rollout", result="undecided")
    if state.phase in UNDECIDED:
        scaled = _scaled_by_others(state, before)
        return resume_rollout(rules, state, event, scaled, restarted=restarted)
    if state.phase is Phase.PROMOTING and any(s.name in state.fleet.exited for s in state.greens):
        return _resume_promotion_without_green(state, event.at)
    if state.phase in MOVING:
        return repeat_effect(state)
    if state.phase is Phase.HALTED:
        state = enter_phase(state, Phase.OBSERVING, event.at, "the daemon was restarted by an operator")
    if (lost := missing_server(state)) is not None:
        why = f"{lost.name} was not running when the daemon started"
        return _leave_to_operator(state, lost) if state.maintenance else restore(rules, state, event.at, why)
    return request_effect(state, route_to(state.fleet.running))


def _scaled_by_others(state: State, before: FoundServers) -> Mapping[str, int]:
    """Old servers to which a third party has given more replicas, and how many; below 0: fewer.

    Those of the effect that is under way may be flettner's own.
    """
    awaited = state.effects.awaited
    own = awaited.server.name if isinstance(awaited, Stop | Launch) else ""
    old = [s for s in state.fleet.running if s.name in state.canary.replicas and s.name != own]
    more = {s.name: s.replicas - before.get(s.name, s).replicas for s in old}
    return {name: count for name, count in more.items() if count}


def _leave_to_operator(state: State, server: Server | None) -> Transition:
    name = server.name if server else "no server"
    route = route_to(state.fleet.running) if state.fleet.running else None
    state = replace(state, note=f"in maintenance: {name} does not run and is not started")
    return request_effect(state, route) if route else without_effects(state)


def _resume_promotion_without_green(state: State, at: datetime) -> Transition:
    """Roll back if that is possible or the old servers must serve; else go on with the other greens."""
    none_left = all(server.name in state.fleet.exited for server in state.greens)
    if not none_left and not can_roll_back(state):
        return repeat_effect(state)
    why = "green was not running when the daemon started"
    return roll_back(state, at, why, hung=True, result="undecided")


def merge_found_servers(state: State, event: AgentStarted, by_name: FoundServers) -> State:
    """Update the recorded servers to those that run; a missing one exited, unless flettner stopped it."""
    if not state.fleet.servers:
        return adopt_servers(state, event)
    fleet, note, drifted = [], "", False
    names = {server.name for server in state.servers}
    for recorded in state.fleet.servers:
        server = by_name.get(recorded.name) or find_by_address(event, recorded, names) or recorded
        server = with_kept_values(state.knobs, recorded, server)
        if dict(server.setting) != dict(recorded.setting):
            note = f"{server.name} runs with other flags than flettner set: its flags are adopted"
        fleet.append(
            replace(
                server,
                like=recorded.like,
                differs=recorded.differs,
                adapters=recorded.adapters,
                start=server.start
                or recorded.start,  # where the engine reads it, a third party may change it
            )
        )
        drifted = drifted or has_drifted(state.knobs, server)
    fleet += servers_joining(state, event)
    running = {server.name for server in event.servers}
    expected = [
        s for s in (*fleet, *state.greens) if s.name not in (*state.fleet.stopped, state.effects.stopping)
    ]
    exited = tuple(s.name for s in expected if s.name not in running and s.address)
    seen = replace(state, fleet=replace(state.fleet, servers=tuple(fleet), exited=exited))
    if isinstance(state.rollout, Canary):
        greens = tuple(_as_found(state, green, by_name) for green in state.greens)
        seen = replace(seen, rollout=replace(state.rollout, greens=greens))
    if note:
        seen = replace(seen, knobs=None)
    if drifted:
        note = note or "another program has set limits of the running servers: its values are adopted"
        seen = replace(seen, knobs=None)
    if note:
        seen = _end_made(replace(seen, note=note))
        seen = end_all(seen, note)
    return seen


def _as_found(state: State, green: Server, by_name: FoundServers) -> Server:
    """A new server as it runs; the newest one may be about to start, or to get another replica."""
    if state.phase in {Phase.DRAINING, Phase.LAUNCHING} and green is state.greens[-1]:
        return green
    return replace(by_name.get(green.name, green), like=green.like, differs=green.differs, start=green.start)


def _end_made(state: State) -> State:
    """End the suggestions that a third party has carried out: the servers run with their values."""
    for suggestion in state.suggestions.open:
        to = suggestion.proposal.to
        values = [{**server.setting, **server.start} for server in state.fleet.running]
        running = [[present.get(knob) for knob in to] for present in values]
        if running and all(values == list(to.values()) for values in running):
            state = end_suggestion(state, suggestion, "superseded", "a third party has made this change")
    return state


def adopt_servers(state: State, event: AgentStarted) -> State:
    """Adopt the server with the most traffic as blue, and servers with the same setting as its peers."""
    weights = event.weights or {}
    by_weight = sorted(event.servers, key=lambda s: (-weights.get(s.name, 0), s.ours, s.name))
    if not by_weight:
        return replace(state, fleet=replace(state.fleet, exited=()))
    blue, *rest = by_weight
    others = tuple(s for s in rest if s.ours is blue.ours and (not s.ours or s.setting == blue.setting))
    names = ", ".join(f"{server.name} at {server.address}" for server in (blue, *others))
    fleet = replace(state.fleet, servers=(blue, *others), exited=())
    return replace(state, fleet=fleet, note=f"adopted {names}")


def find_by_address(event: AgentStarted, recorded: Server, names: Collection[str]) -> Server | None:
    """An adopted server found under another name at its address, unless that name is of a known server."""
    same = [
        server for server in event.servers if server.address == recorded.address and server.name not in names
    ]
    return same[0] if same and not recorded.ours else None


def servers_joining(state: State, event: AgentStarted) -> list[Server]:
    """Further third-party servers, as long as the full fleet is third-party."""
    if state.phase in MOVING or any(server.ours for server in state.fleet.servers):
        return []
    recorded = {key for server in state.servers for key in (server.name, server.address)}
    return [s for s in event.servers if not s.ours and s.name not in recorded and s.address not in recorded]


def recover_without_blue(
    rules: Rules, state: State, event: AgentStarted, by_name: FoundServers
) -> Transition:
    """No old server runs: continue with green if it is up, else start a server.

    An adopted server is left to its owner.
    """
    blue, greens = state.fleet.blue, state.greens
    if state.maintenance:
        return _leave_to_operator(state, blue)
    why = f"{blue.name} was not running when the daemon started" if blue else "no server was running"
    up = bool(greens) and greens[-1].name in by_name
    if up and state.phase in {Phase.WARMING, Phase.CANARY} and len(greens) == 1:
        return promote(state, event.at, f"{why}: green is the only server")
    if up and state.phase in UNDECIDED:
        return roll_back(state, event.at, why, result="undecided")
    if up and state.phase is Phase.PROMOTING:
        still_splitting = isinstance(state.effects.awaited, Route)
        return promote(state, event.at, state.note) if still_splitting else repeat_effect(state)
    if blue is not None and not blue.ours and state.phase not in MOVING:
        return without_effects(replace(state, note=f"{why}: start it again; flettner did not stop it"))
    return restore(rules, state, event.at, why)


def resume_rollout(
    rules: Rules, state: State, event: AgentStarted, scaled: Mapping[str, int], *, restarted: bool
) -> Transition:
    """Continue the rollout with its journalled evidence if all servers run; else roll back.

    `scaled`: replicas that a third party has given to old servers since.
    """
    canary = state.canary
    replicas = {name: count + scaled.get(name, 0) for name, count in canary.replicas.items()}
    canary = replace(canary, restarts=canary.restarts + restarted, phase_since=event.at, replicas=replicas)
    if scaled and not canary.passed:
        canary = replan(rules, state, canary, event.at)
    state = replace(state, rollout=canary)
    if canary.restarts > RESUMES:
        why = f"the daemon was restarted {canary.restarts} times in this rollout"
        return roll_back(state, event.at, why, result="undecided")
    if canary.green.name in state.fleet.exited:
        why = "green was not running when the daemon started"
        return roll_back(state, event.at, why, hung=True, result="undecided")
    if state.fleet.exited:
        why = f"{', '.join(state.fleet.exited)} was not running when the daemon started"
        return roll_back(state, event.at, why, result="undecided")
    if state.phase is Phase.CANARY and scaled and not canary.passed:
        counts = ", ".join(f"{name} has {replicas[name]} replicas" for name in scaled)
        return begin_step(replace(state, note=f"{counts} now: the canary begins again"), 0)
    if state.phase is Phase.CANARY:
        return resume_step(state)
    return repeat_effect(state)


def replan(rules: Rules, state: State, canary: Canary, at: datetime) -> Canary:
    """The canary with the shares for its number of replicas."""
    preflight = PreflightResult(strategy=canary.suggestion.preflight.strategy)
    configured = configured_plan(rules.plan, canary.suggestion.proposal.to)
    plan = plan_for(configured, preflight, sum(canary.replicas.values()), expected_rate(state, at))
    return replace(canary, plan=replace(canary.plan, steps=plan.steps))


def retire_orphans(moved: Transition, by_name: FoundServers) -> Transition:
    """Retire servers that flettner started but the journal does not know, after a crash in between.

    Retire the last rollout's server too, running or not: the engine cleans up what a crash left of it.
    """
    state, _ = moved
    owned = {server.name for server in state.servers}
    if isinstance(state.effects.awaited, Launch):
        owned.add(state.effects.awaited.server.name)
    for name, server in by_name.items():
        if server.ours and name not in owned:
            moved = add_retirement(moved, server)
    last = state.rollout.server if isinstance(state.rollout, Canary) else ""
    if last and last not in owned and last not in by_name:
        moved = add_retirement(moved, Server(name=last, setting={}))
    return moved
