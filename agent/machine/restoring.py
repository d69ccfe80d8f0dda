"""RESTORING: a server with the setting in force exited; one like it starts."""

from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.effects import Launch, Retire, Route
from flettner.agent.domain.events import EffectFailed, EffectOutcome, Launched, Retired, Routed, ServerLost
from flettner.agent.domain.model import OutcomeResult, Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.adapters import refusal
from flettner.agent.machine.hot_knobs import keep_at_successor, setting_to_start
from flettner.agent.machine.open_suggestions import end_all
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    add_retirement,
    await_nothing,
    can_serve,
    choose_blue,
    enter_phase,
    name_next_server,
    remember_outcome,
    repeat_effect,
    replace_split,
    request_effect,
    retry_later,
    without_effects,
)

TRIES = 5


def missing_server(state: State) -> Server | None:
    """A server of the fleet that flettner stopped, or that flettner started and that exited; no spared one.

    A third-party server is left to its owner unless no server runs. A server whose slot a new server still
    holds comes last: there is no capacity for it yet.
    """
    fleet = state.fleet
    spared = {server.name for server in fleet.spared}
    stopped = [s for s in fleet.servers if s.name in fleet.stopped and s.name not in spared]
    exited = [server for server in fleet.servers if server.name in fleet.exited]
    held = {server.like for server in state.greens}
    missing = [s for s in (*stopped, *exited) if s in stopped or s.ours or not fleet.running]
    return min(missing, key=lambda server: server.name in held, default=None)


def restore(
    rules: Rules, state: State, at: datetime, why: str, *, result: OutcomeResult = "undecided"
) -> Transition:
    """Start a server like the missing one.

    The running servers, or else a serving green, carry all traffic until then. Any other green is retired and
    its rollout ends, with the `result`. The exited server is retired first: its remains may hold GPU memory.
    """
    state = mark_retiring_as_exited(state)
    old = _find_predecessor(state)
    bridge = _serving_green(state) if not state.fleet.running else None
    state = _end_rollout(state, at, result, why, bridged=bridge is not None)
    state = enter_phase(choose_blue(end_all(state, why)), Phase.RESTORING, at, why)
    carriers = state.fleet.running if bridge is None else (bridge,)
    if carriers:
        state, meanwhile = replace_split(state, route_to(carriers))
        state, effects = retire_predecessor(rules, state, old)
        return state, (meanwhile, *effects)
    greens = state.greens
    if isinstance(state.rollout, Canary):
        state = replace(state, rollout=replace(state.rollout, greens=()))
    moved = retire_predecessor(rules, state, old)
    for server in greens:
        moved = add_retirement(moved, server)
    return moved


def _find_predecessor(state: State) -> Server | None:
    """The server whose place a successor takes: the missing one, or any if none runs; else None."""
    return missing_server(state) or (None if state.fleet.running else state.fleet.blue)


def _serving_green(state: State) -> Server | None:
    """A green that could carry all traffic."""
    canary = state.rollout
    return canary.green if isinstance(canary, Canary) and can_serve(state, canary) else None


def _end_rollout(state: State, at: datetime, result: OutcomeResult, why: str, *, bridged: bool) -> State:
    """End a rollout that has not ended; one whose green serves meanwhile ends later."""
    rollout = state.rollout
    if rollout is None or rollout.ended_at is not None:
        return state
    if rollout.outcome == "running":
        state = remember_outcome(state, rollout.suggestion, at, result, why)
        rollout = replace(rollout, outcome="rolled_back", why=why)
    return replace(state, rollout=rollout if bridged else replace(rollout, ended_at=at))


def restart_failing(rules: Rules, state: State, at: datetime) -> Transition | None:
    """Start a server of ours again that hangs for as long as the configuration allows; None if none does."""
    if rules.restart_after_s is None or state.mode == "advise" or state.paused:
        return None
    for server in state.fleet.running:
        failure = state.failing.get(server.name)
        long = failure is not None and at - failure.since >= timedelta(seconds=rules.restart_after_s)
        if server.ours and failure is not None and long and failure.kind != "errors":
            exited = replace(state, fleet=state.fleet.with_exited(server.name))
            return restore(rules, exited, at, f"{server.name} {failure.why}: it is started again")
    return None


def mark_retiring_as_exited(state: State) -> State:
    """Treat a server whose retirement was requested as exited: it cannot be called back."""
    effect = state.effects.awaited
    if not isinstance(effect, Retire):
        return state
    return replace(state, fleet=state.fleet.with_exited(effect.server.name))


def retire_predecessor(rules: Rules, state: State, old: Server | None) -> Transition:
    """Retire the exited server before its successor starts, unless it is third-party."""
    if old is not None and old.ours and old.name not in state.fleet.stopped:
        return request_effect(state, Retire(number=0, server=old))
    return launch_successor(rules, state)


def launch_successor(rules: Rules, state: State) -> Transition:
    """Start the missing server's successor. If none is missing, as third-party servers are left to their
    owners while others run, those serve alone.
    """
    old = _find_predecessor(state)
    if old is None and state.fleet.running:
        return request_effect(state, route_to(state.fleet.running))
    if old is not None and old.name in state.fleet.stopped:
        return request_effect(state, Launch(number=0, server=old, deadline_s=rules.plan.start_s))
    state, name = name_next_server(state)
    # without a predecessor: as the configured command says
    fresh = Server(name=name, setting={})
    if old is not None:
        fresh = Server(
            name=name,
            setting=setting_to_start(state.knobs, old),
            like=old.name,
            replicas=old.replicas,
            start=old.start,
            on_cpus=old.on_cpus,
        )
    return request_effect(state, Launch(number=0, server=fresh, deadline_s=rules.plan.start_s))


def on_retired(rules: Rules, state: State, _event: Retired) -> Transition:
    """The predecessor's resources are free: launch the successor."""
    return launch_successor(rules, state)


def on_launched(_: Rules, state: State, event: Launched) -> Transition:
    """Put the successor, or the restarted server, in its slot; then drain a green that served meanwhile."""
    if not state.effects.is_awaited(event.number):
        return _join(state, event)
    effect = state.effects.awaited_as(Launch)
    state = replace(state, note=refusal(event) or state.note)
    place = effect.server.name if state.fleet.has(effect.server.name) else effect.server.like
    return return_traffic(put_in_slot(state, place, event.server), event.at, event.server.name)


def joins(state: State, event: EffectOutcome) -> bool:
    """Whether a stopped server has started before the awaited one, as where all of them start at once."""
    awaited = state.effects.awaited
    return (
        state.phase is Phase.RESTORING
        and isinstance(event, Launched)
        and event.server.name in state.fleet.stopped
        and not (isinstance(awaited, Launch) and awaited.server.name == event.server.name)
        and not state.greens
    )


def _join(state: State, event: Launched) -> Transition:
    """It serves at once: a start that takes long, or fails, does not hold it up."""
    state = put_in_slot(replace(state, note=refusal(event) or state.note), event.server.name, event.server)
    if isinstance(state.effects.awaited, Route):  # once it is in force, all that run get traffic
        return without_effects(state)
    state, split = replace_split(state, route_to(state.fleet.running))
    return state, (split,)


def return_traffic(state: State, at: datetime, name: str) -> Transition:
    if not state.greens:
        return request_effect(state, route_to(state.fleet.running))
    green = state.canary.green
    back = enter_phase(state, Phase.ROLLING_BACK, at, f"{name} takes over from {green.name}")
    return request_effect(back, route_to(state.fleet.running, green))


def recheck_missing(state: State, at: datetime) -> Transition:
    """After a restart of the daemon: if the missing server runs again, its successor is not needed."""
    effect = state.effects.awaited
    again = isinstance(effect, Launch) and state.fleet.has(effect.server.name)  # or more of its replicas
    if missing_server(state) is not None or not state.fleet.running or again:
        return repeat_effect(state)
    moved = return_traffic(state, at, state.fleet.running[0].name)
    return add_retirement(moved, effect.server) if isinstance(effect, Launch) else moved


def put_in_slot(state: State, name: str, server: Server) -> State:
    """Put `server` in the slot of the fleet's server `name`, which is then neither stopped nor exited."""
    fleet = state.fleet
    recorded = next((server for server in fleet.servers if server.name == name), server)
    knobs, kept = keep_at_successor(state.knobs, recorded, server)
    fleet = replace(
        fleet,
        servers=tuple(kept if s.name == name else s for s in fleet.servers) or (kept,),
        stopped=tuple(n for n in fleet.stopped if n != name),
        exited=tuple(n for n in fleet.exited if n != name),
    )
    return replace(state, fleet=fleet, knobs=knobs)


def on_routed(rules: Rules, state: State, event: Routed) -> Transition:
    state = await_nothing(state)
    if missing_server(state) is not None:
        return restore(rules, state, event.at, state.note)
    running, weights = state.fleet.running, state.split.intended_weights
    if state.split.intended is None or not all(weights.get(server.name) for server in running):
        return request_effect(state, route_to(running))
    back = running[-1].name if running else "no server"
    return without_effects(enter_phase(state, Phase.OBSERVING, event.at, f"{back} serves again"))


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """Start again if the successor exits before it has traffic; forget a green that exits."""
    if event.gone and state.greens and event.server == state.canary.green.name:
        canary = state.canary
        return without_effects(replace(state, rollout=replace(canary, greens=canary.greens[:-1])))
    if event.gone and state.fleet.has(event.server) and isinstance(state.effects.awaited, Route):
        return restore(rules, state, event.at, f"{event.server}: {event.why}")
    return without_effects(state)


def on_failed(rules: Rules, state: State, event: EffectFailed) -> Transition:
    """Retry a split without limit, and a retirement or a start up to TRIES times."""
    tried = state.effects.tries + 1 >= TRIES
    if tried and isinstance(state.effects.awaited, Retire):
        return launch_successor(rules, replace(state, effects=replace(state.effects, tries=0)))
    serves = state.greens or state.fleet.running
    if tried and isinstance(state.effects.awaited, Launch) and not serves:
        halted = await_nothing(state)
        return without_effects(
            enter_phase(halted, Phase.HALTED, event.at, f"no server could be started: {event.why}")
        )
    return without_effects(retry_later(state, event.at, event.why))
