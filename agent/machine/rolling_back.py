"""ROLLING_BACK: the new servers are retired, and each old one that was stopped starts in its slot again.

The modules of the earlier phases decide on a rollback; canary_decision does so on the judge's verdict.
A new server that has taken several replicas of an old one gives them back one at a time, while it answers.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.effects import Drain, Launch, Retire, Route, Stop
from flettner.agent.domain.events import (
    EffectFailed,
    Launched,
    Observed,
    Retired,
    Routed,
    ServerLost,
    Stopped,
)
from flettner.agent.domain.fleet import resize_server
from flettner.agent.domain.model import OutcomeResult, Server
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.server_health import Failure
from flettner.agent.domain.state import Phase, State
from flettner.agent.judge.server_health import is_proven
from flettner.agent.machine.adapters import refusal
from flettner.agent.machine.failing import HANGING
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.restoring import TRIES, missing_server, put_in_slot, restore
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    add_retirement,
    await_nothing,
    choose_blue,
    count_exposed,
    enter_cooldown,
    enter_phase,
    is_green,
    remember_outcome,
    request_effect,
    retry_later,
    without_effects,
)

KILLED_WITHIN = timedelta(seconds=10)  # failed requests are seen before the end of their server
HUNG_DRAIN_S = 2.0  # of a server that no longer answers: its open requests end, or are retried, when it exits


def roll_back(
    state: State,
    at: datetime,
    why: str,
    log: tuple[str, ...] = (),
    *,
    hung: bool = False,
    result: OutcomeResult | None = None,
    reason: str = "",
) -> Transition:
    """Return traffic to the old servers; drain (briefly if it hung) and retire the new ones.

    `result`: the outcome to remember, where the changed values did not cause the rollback. `reason`: an
    operator's text, which only the rollout keeps: every later state holds the outcomes.
    """
    canary = state.canary
    if not canary.greens or not state.fleet.servers:
        raise AssertionError(f"nothing to roll back in {state.phase}")
    if isinstance(state.effects.awaited, Stop):  # stopped or not, a launch starts it or finds it running
        state = mark_stopped(state, state.effects.awaited)
    before_traffic = not canary.passed and state.phase in {Phase.DRAINING, Phase.LAUNCHING, Phase.WARMING}
    result = result or ("failed" if before_traffic else "rolled_back")
    state = remember_outcome(state, canary.suggestion, at, result, why)
    canary = replace(
        order_exited_first(state.canary, state.fleet.exited),
        outcome="rolled_back",
        why=f"{why}: {reason}" if reason else why,
        log=log,
        hung=hung,
    )
    return roll_back_next(enter_phase(replace(state, rollout=canary), Phase.ROLLING_BACK, at, why))


def leave_failing_green(
    state: State, at: datetime, name: str, failure: Failure, where: str = ""
) -> Transition:
    """Roll back for the failure of a new server. A paused container is no evidence about its setting."""
    if failure.kind == "paused":
        why = f"{where}{name} {failure.why}, which is no evidence about its flags"
        return roll_back(state, at, why, hung=True, result="undecided")
    why = f"{where}green is worse: {name} {failure.why}"
    return roll_back(state, at, why, hung=failure.kind in HANGING)


def result_of_loss(event: ServerLost | EffectFailed) -> OutcomeResult | None:
    """The outcome of a rollout whose new server was lost; None: by the phase."""
    return "undecided" if event.external else None


def order_exited_first(canary: Canary, exited: Collection[str]) -> Canary:
    """Retire exited new servers first: the remaining ones carry traffic until old ones are restored."""
    if not canary.green.address:
        return canary
    return replace(canary, greens=tuple(sorted(canary.greens, key=lambda server: server.name in exited)))


def mark_stopped(state: State, effect: Stop) -> State:
    """Record that flettner stopped the server, or some replicas, which can be started again."""
    name = effect.server.name
    if effect.keep:
        return resize(state, name, effect.keep)
    whole = state.canary.replicas.get(name, effect.server.replicas)
    return resize(replace(state, fleet=state.fleet.with_stopped(name)), name, whole)


def resize(state: State, name: str, replicas: int) -> State:
    canary = replace(state.canary, greens=resize_server(state.greens, name, replicas))
    return replace(state, fleet=state.fleet.with_replicas(name, replicas), rollout=canary)


def gives_back(state: State) -> bool:
    """Whether green's newest replica makes way for one of the old server, while the others serve on."""
    canary = state.canary
    green = canary.newest
    if green is None or green.replicas == 1 or canary.hung or green.name in state.fleet.exited:
        return False
    return green.name not in state.failing and any(old.name == green.like for old in short_servers(state))


def short_servers(state: State) -> list[Server]:
    """The old servers that are stopped, or have fewer replicas than before the rollout; with all of them."""
    whole, fleet = state.canary.replicas, state.fleet
    stopped = [server for server in fleet.servers if server.name in fleet.stopped]
    fewer = [(s, whole[s.name]) for s in fleet.running if s.replicas < whole.get(s.name, 0)]
    return [*stopped, *(replace(server, replicas=replicas) for server, replicas in fewer)]


def roll_back_next(state: State) -> Transition:
    """Retire the newest server, restore the old one of its slot, go on with the next newest.

    Two slots are never empty at once.
    """
    canary = state.canary
    green = canary.newest
    if green is not None:
        return _leave_green(state, green)
    held = {server.like for server in canary.greens}
    free = [server for server in short_servers(state) if server.name not in held]
    if free:
        return request_effect(state, Launch(number=0, server=free[0], deadline_s=canary.plan.start_s))
    wanted = route_to(traffic_servers(state), closed_s=canary.suggestion.preflight.outage_s)
    if state.split.intended is None or not _is_same_split(state.split.intended, wanted):
        return request_effect(state, wanted)
    state = replace(state, rollout=replace(canary, refilling=False))
    return roll_back_next(state) if canary.greens else without_effects(await_nothing(state))


def _leave_green(state: State, green: Server) -> Transition:
    """Take the newest server, or one of its replicas, out of the split; then retire it."""
    if not is_routed(state, green):
        return request_effect(state, Retire(number=0, server=green))
    if gives_back(state):
        smaller = replace(green, replicas=green.replicas - 1)
        return request_effect(state, route_to((*traffic_servers(state), smaller)))
    outage_s = state.canary.suggestion.preflight.outage_s
    return request_effect(state, route_to(traffic_servers(state), green, closed_s=outage_s))


def traffic_servers(state: State) -> tuple[Server, ...]:
    earlier = state.canary.earlier_greens
    return (*state.fleet.running, *(server for server in earlier if server.name not in state.fleet.exited))


def is_routed(state: State, server: Server) -> bool:
    """Whether the proxy knows the server, so that it may have open requests."""
    return server.name in state.split.weights


def _is_same_split(route: Route, other: Route) -> bool:
    return _split_of(route) == _split_of(other)


def _split_of(route: Route) -> tuple[object, ...]:
    addresses = {server.name: server.address for server in route.servers}
    return dict(route.weights), addresses, route.leased, route.closed_s


def on_routed(rules: Rules, state: State, event: Routed) -> Transition:
    """The newest server has no share: drain it. Or an old one serves again: continue with the next slot."""
    canary = state.canary
    green = canary.newest
    if green is None:
        return continue_rollback(rules, state, event.at)
    if state.split.planned is None and gives_back(state):
        return request_effect(state, Stop(number=0, server=green, keep=green.replicas - 1))
    if state.split.weights.get(green.name) or not _can_take_over(state, event.at):  # it waits for blue
        return without_effects(await_nothing(state))
    draining = replace(state, note=f"{green.name} gets no new requests; its open requests may end")
    deadline_s = HUNG_DRAIN_S if canary.hung else canary.plan.drain_s
    return request_effect(draining, Drain(number=0, server=green, deadline_s=deadline_s))


def _can_take_over(state: State, at: datetime) -> bool:
    """Whether green may leave: an old server that failed is only tried at first, and may fail again."""
    return all(is_proven(state.health.get(server.name), at) for server in traffic_servers(state))


def on_observed(rules: Rules, state: State, event: Observed) -> Transition:
    """Count exposed requests; continue once no failover needs the new servers any more."""
    waits = state.split.planned is not None or not _can_take_over(state, event.at)
    if state.effects.awaited is None and not waits:
        return continue_rollback(rules, state, event.at)
    return keep_alive(count_exposed(state, event), event.at)


def on_stopped(_: Rules, state: State, _event: Stopped) -> Transition:
    """A replica of green has ended: the old server gets one more."""
    effect = state.effects.awaited_as(Stop)
    state = mark_stopped(state, effect)
    canary, fleet = state.canary, state.fleet
    old = next(server for server in fleet.servers if server.name == canary.green.like)
    wanted = replace(old, replicas=1 if old.name in fleet.stopped else old.replicas + 1)
    return request_effect(state, Launch(number=0, server=wanted, deadline_s=canary.plan.start_s))


def on_retired(rules: Rules, state: State, event: Retired) -> Transition:
    note = f"{state.canary.green.name} is retired"
    return continue_rollback(rules, replace(without_green(state), note=note), event.at)


def without_green(state: State) -> State:
    """The newest server has left: the old server of its slot is restored before the next one leaves."""
    canary = state.canary
    return replace(state, rollout=replace(canary, greens=canary.greens[:-1], refilling=True))


def on_launched(rules: Rules, state: State, event: Launched) -> Transition:
    """An old server runs in its slot again, possibly at another address."""
    state = put_in_slot(state, event.server.name, event.server)
    return continue_rollback(
        rules, replace(state, note=refusal(event) or f"{event.server.name} runs again"), event.at
    )


def continue_rollback(rules: Rules, state: State, at: datetime) -> Transition:
    state, effects = roll_back_next(choose_blue(state))
    if effects or state.effects.awaited is not None:
        return state, effects
    canary = replace(state.canary, ended_at=at)
    state, why = replace(state, rollout=canary), f"rolled back: {canary.why}"
    if missing_server(state) is not None:
        return restore(rules, state, at, why)
    return enter_cooldown(rules, state, at, why)


def on_failed(rules: Rules, state: State, event: EffectFailed) -> Transition:
    """Retry the same effect after a pause.

    A new server that cannot be retired is left behind after TRIES: the old one may fit next to it.
    """
    if not isinstance(state.effects.awaited, Retire) or state.effects.tries + 1 < TRIES:
        return without_effects(retry_later(state, event.at, event.why))
    green = state.canary.green
    state = replace(without_green(state), effects=replace(state.effects, tries=0))
    state, effects = continue_rollback(rules, state, event.at)
    note = f"{green.name} could not be retired: {event.why}"
    return add_retirement((replace(state, note=note), effects), green)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """The last old server exited: start a successor. New servers were to be retired anyway."""
    state = excuse_killed_green(state, event)
    if not event.gone or not state.fleet.has(event.server):
        return without_effects(state)
    why = f"{event.server}: {event.why}"
    if state.fleet.running or state.fleet.stopped or state.canary.earlier_greens:
        return without_effects(replace(state, note=why))
    return restore(rules, state, event.at, why)


def excuse_killed_green(state: State, event: ServerLost) -> State:
    """Remember a green as undecided that a third party ended: its requests failed for that reason.

    Before its retirement was requested, the third party is not flettner.
    """
    canary = state.canary
    if not state.outcomes or isinstance(state.effects.awaited, Retire):
        return state
    last = state.outcomes[-1]
    recent = event.at - canary.phase_since <= KILLED_WITHIN
    judged = last.result in ("failed", "rolled_back") and last.at == canary.phase_since
    if not (event.external and event.gone and recent and judged and is_green(canary, event)):
        return state
    excused = replace(last, result="undecided", why=event.why)
    return replace(state, outcomes=(*state.outcomes[:-1], excused), note=f"{event.why}: no evidence")
