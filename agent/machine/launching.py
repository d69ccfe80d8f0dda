"""LAUNCHING, WARMING and CANARY: green starts, gets its shares, and is judged."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from flettner.agent.domain.effects import Examine, KeepAlive, Launch, Route, WarmUp
from flettner.agent.domain.events import Aborted, EffectFailed, Launched, Observed, Routed, ServerLost, Warmed
from flettner.agent.domain.model import OutcomeResult, Server
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.state import Phase, Rollout, State
from flettner.agent.machine.promoting import promote
from flettner.agent.machine.replacing import on_lost as lost_in_turn
from flettner.agent.machine.replacing import replace_next, route_to_newcomer
from flettner.agent.machine.restoring import restore
from flettner.agent.machine.rolling_back import result_of_loss, roll_back
from flettner.agent.machine.routes import route_to, split_route
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    await_nothing,
    count_exposed,
    enter_phase,
    is_green,
    is_in_fleet,
    request_effect,
    without_effects,
)

ALL = 100
GRACE_S = 60.0  # beyond the actuator's own deadline


def observe_start(_: Rules, state: State, event: Observed) -> Transition:
    """While green starts: record blue's baseline under full load, and enforce the deadline."""
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    if state.fleet.replica_count >= sum(rollout.replicas.values()) and not state.fleet.stopped:
        baseline = rollout.baseline + sum_counts(state.fleet.running, event)
        evidence = replace(rollout.evidence, baseline_s=rollout.evidence.baseline_s + 1.0)
        state = replace(state, rollout=replace(rollout, baseline=baseline, evidence=evidence))
    state = count_exposed(state, event)
    limit_s = (
        state.effects.awaited.deadline_s
        if isinstance(state.effects.awaited, Launch | WarmUp | Examine)
        else 0.0
    )
    if event.at > rollout.phase_since + timedelta(seconds=limit_s + GRACE_S):
        return roll_back(state, event.at, f"{state.phase.value} took longer than {limit_s:.0f} s")
    if state.split.route is None:
        return without_effects(state)
    return state, (KeepAlive(route=state.split.route),)


def on_launched(_: Rules, state: State, event: Launched) -> Transition:
    rollout = state.rollout
    if rollout is None or not state.effects.is_awaited(event.number):
        return without_effects(state)
    state = enter_phase(
        replace(state, green=event.server), Phase.WARMING, event.at, f"{event.server.name} is healthy"
    )
    plan = rollout.plan
    return request_effect(
        state,
        WarmUp(number=0, server=event.server, requests=plan.warm_up_requests, deadline_s=plan.warm_up_s),
    )


def on_warmed(_: Rules, state: State, event: Warmed) -> Transition:
    if state.rollout is None or not state.effects.is_awaited(event.number):
        return without_effects(state)
    if state.rollout.passed:
        return route_to_newcomer(state, event.at)
    return begin_step(enter_phase(state, Phase.CANARY, event.at, "green is warm"), 0)


def on_joined(_: Rules, state: State, event: Routed) -> Transition:
    """The newest server serves: replace the next one, then compare all of them with the last old one."""
    if state.rollout is None or state.green is None or not state.effects.is_awaited(event.number):
        return without_effects(state)
    serving = f"{state.green.name} serves"
    turn = replace_next(state, event.at, serving)
    if turn is not None:
        return turn
    if state.rollout.held:
        return promote(state, event.at, f"the hold step passed, and {serving}")
    return begin_step(enter_phase(state, Phase.CANARY, event.at, serving), len(state.rollout.plan.steps) - 1)


def begin_step(state: State, step: int) -> Transition:
    """Request the step's split; its evidence counts once it is in force."""
    rollout = state.rollout
    if state.green is None or rollout is None:
        return without_effects(state)
    rollout = replace(
        keep_parity_counts(rollout),
        step=step,
        step_since=None,
        green=RequestCounts(),
        blue=RequestCounts(),
        evidence=rollout.evidence.next_step(holding=step == len(rollout.plan.steps) - 1),
        parked="",
        waits="",
        bad=rollout.bad + rollout.step_bad,
        step_bad=0,
    )
    return route_step(replace(state, rollout=rollout))


def keep_parity_counts(rollout: Rollout) -> Rollout:
    """Keep the counts of green and blue at equal load, from which the gain is measured."""
    weight, parity = rollout.plan.steps[rollout.step].weight, rollout.plan.steps[rollout.step].parity
    if rollout.step_since is None or not parity <= weight < ALL:
        return rollout
    return replace(rollout, level=(rollout.level[0] + rollout.green, rollout.level[1] + rollout.blue))


def route_step(state: State) -> Transition:
    """Route the step's share to green; nothing while it is suspended."""
    green, rollout = state.green, state.rollout
    if green is None or rollout is None:
        return without_effects(state)
    if rollout.parked:
        return request_effect(state, route_to(state.fleet.running, *state.greens))
    grown = bool(state.crew) or green.replicas > 1
    if grown and rollout.plan.steps[rollout.step].weight < ALL:
        return request_effect(state, route_to((*state.greens, *state.fleet.running)))
    if state.crew:
        return request_effect(state, route_to(state.greens, *state.fleet.running))
    return request_effect(
        state,
        split_route(
            state.fleet.running, green, rollout.plan.steps[rollout.step].weight, rollout.plan.lease_s
        ),
    )


def resume_step(state: State) -> Transition:
    """Continue the step after a restart of the daemon, with its evidence."""
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    return route_step(replace(state, rollout=replace(rollout, evidence=rollout.evidence.resumed())))


def on_step_routed(_: Rules, state: State, event: Routed) -> Transition:
    rollout = state.rollout
    if rollout is None or not state.effects.is_awaited(event.number):
        return without_effects(state)
    if state.split.planned is not None:  # a failover: the step goes on when it is over
        return without_effects(await_nothing(state))
    weight = rollout.plan.steps[rollout.step].weight
    note = (
        f"green is suspended without traffic: {rollout.parked}"
        if rollout.parked
        else f"green has {weight} % of the traffic"
    )
    rollout = replace(rollout, step_since=rollout.step_since or event.at)
    return without_effects(replace(await_nothing(state), rollout=rollout, note=note))


def sum_counts(servers: Sequence[Server], event: Observed) -> RequestCounts:
    return sum((event.arms.get(server.name, RequestCounts()) for server in servers), RequestCounts())


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    if not state.effects.is_awaited(event.number):
        return without_effects(state)
    elsewhere = isinstance(state.effects.awaited, Route | Examine)
    result: OutcomeResult | None = "undecided" if elsewhere else result_of_loss(event)
    return roll_back(state, event.at, event.why, event.log, result=result)


def abort(_: Rules, state: State, event: Aborted) -> Transition:
    return roll_back(state, event.at, f"aborted by {event.actor}", result="aborted", reason=event.reason)


def on_lost_before_canary(rules: Rules, state: State, event: ServerLost) -> Transition:
    """A server was lost before green had traffic."""
    if is_green(state, event):
        return roll_back_lost_green(state, event)
    if not is_last_of_fleet(state, event):
        return lost_in_turn(rules, state, event)
    why = f"blue was lost: {event.why}"
    if state.phase is Phase.WARMING:
        return promote(state, event.at, why)
    result = result_of_loss(event) or "failed"  # green's start took blue's memory
    return restore(rules, state, event.at, why, result=result)


def on_lost_in_canary(rules: Rules, state: State, event: ServerLost) -> Transition:
    """Green was lost: roll back. The last old server was lost: promote green, which is healthy and warm."""
    if is_green(state, event):
        return roll_back_lost_green(state, event)
    if not is_last_of_fleet(state, event):
        return lost_in_turn(rules, state, event)
    why = f"blue was lost ({event.why}): green is the only healthy server"
    return promote(state, event.at, why)


def roll_back_lost_green(state: State, event: ServerLost) -> Transition:
    return roll_back(
        state, event.at, f"green: {event.why}", event.log, hung=True, result=result_of_loss(event)
    )


def is_last_of_fleet(state: State, event: ServerLost) -> bool:
    """Whether the last old server exited, so that there is nothing to roll back to."""
    return (
        event.gone
        and is_in_fleet(state, event)
        and not (state.fleet.running or state.fleet.stopped or state.crew)
    )
