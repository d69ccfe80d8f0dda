"""LAUNCHING, WARMING and CANARY: green starts and gets its shares; canary_decision judges it meanwhile.

A green that does not start, or that exits, is rolled back here, and so is any canary that an operator aborts.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from flettner.agent.domain.effects import Examine, KeepAlive, Launch, Route, WarmUp
from flettner.agent.domain.events import Aborted, EffectFailed, Launched, Observed, Routed, ServerLost, Warmed
from flettner.agent.domain.model import OutcomeResult
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.judge.attainment import fails_badly
from flettner.agent.judge.wording import describe_duration
from flettner.agent.machine.adapters import refusal
from flettner.agent.machine.default_plan import configured_plan, follow_evidence
from flettner.agent.machine.promoting import promote
from flettner.agent.machine.replacing import on_lost as lost_in_turn
from flettner.agent.machine.replacing import replace_next, route_to_green
from flettner.agent.machine.restoring import restore
from flettner.agent.machine.rolling_back import result_of_loss, roll_back
from flettner.agent.machine.routes import route_to, split_route
from flettner.agent.machine.start_costs import record_shares, record_start, speed_of
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    await_nothing,
    count_exposed,
    enter_phase,
    is_green,
    request_effect,
    sum_counts,
    without_effects,
)

ALL = 100
LEAST_BASELINE = 100  # requests of a baseline that needs no others
GRACE_S = 60.0  # beyond the actuator's own deadline


def observe_start(_: Rules, state: State, event: Observed) -> Transition:
    """While green starts: record blue's baseline under full load, and enforce the deadline."""
    canary, fleet = state.canary, state.fleet
    if (
        extends_baseline(canary)
        and fleet.replica_count >= sum(canary.replicas.values())
        and not fleet.stopped
    ):
        baseline = canary.baseline + sum_counts(fleet.running, event)
        evidence = replace(canary.evidence, baseline_s=canary.evidence.baseline_s + 1.0)
        canary = replace(canary, baseline=baseline, evidence=evidence)
    canary = replace(canary, clients=_count_clients(canary.clients, event))
    canary = replace(canary, starting=canary.starting.plus(speed_of(state, event)))
    state = count_exposed(replace(state, rollout=canary), event)
    awaited = state.effects.awaited
    limit_s = awaited.deadline_s if isinstance(awaited, Launch | WarmUp | Examine) else 0.0
    if event.at > canary.phase_since + timedelta(seconds=limit_s + GRACE_S):
        return roll_back(
            state, event.at, f"{state.phase.value} took longer than {describe_duration(limit_s)}"
        )
    if state.split.route is None:
        return without_effects(state)
    return state, (KeepAlive(route=state.split.route),)


def _count_clients(before: Mapping[str, int], event: Observed) -> Mapping[str, int]:
    """Add a second to the requests of each bucket of clients."""
    counts = dict(before)
    for buckets in event.clients.values():
        for client, arm in buckets.items():
            counts[str(client.number)] = counts.get(str(client.number), 0) + arm.asked
    return counts


def extends_baseline(canary: Canary) -> bool:
    """Whether what blue serves while green starts is comparable with what green will serve alone.

    On a shared card the start slows blue: it tells nothing new of a blue that fails anyway, and would make
    another one look worse than it is. A baseline of few requests is still better with them than without.
    """
    baseline = canary.baseline
    return not canary.plan.shares_card or fails_badly(baseline) or baseline.total < LEAST_BASELINE


def on_launched(_: Rules, state: State, event: Launched) -> Transition:
    canary, server = state.canary, event.server
    started = replace(state, rollout=replace(canary, greens=(*canary.earlier_greens, server)))
    if why := refusal(event):
        return roll_back(started, event.at, why, result="undecided")
    state = enter_phase(started, Phase.WARMING, event.at, f"{server.name} is healthy")
    plan = canary.plan
    return request_effect(
        state,
        WarmUp(number=0, server=server, requests=plan.warm_up_requests, deadline_s=plan.warm_up_s),
    )


def on_warmed(rules: Rules, state: State, event: Warmed) -> Transition:
    """Begin the canary by the present evidence: at the approval there may have been too little of it."""
    canary = state.canary
    if canary.passed:
        return route_to_green(state, event.at)
    baseline, seconds = canary.baseline, canary.evidence.baseline_s
    plan = follow_evidence(
        canary.plan,
        configured_plan(rules.plan, canary.suggestion.proposal.to),
        canary.suggestion.preflight,
        sum(canary.replicas.values()),
        baseline.asked / seconds if seconds else None,
        failing=fails_badly(baseline),
    )
    state = record_start(replace(state, rollout=replace(canary, plan=plan)), canary)
    return begin_step(enter_phase(state, Phase.CANARY, event.at, "green is warm"), 0)


def on_joined(_: Rules, state: State, event: Routed) -> Transition:
    """The newest server serves: replace the next one, then compare all of them with the last old one."""
    canary = state.canary
    serving = f"{canary.green.name} serves"
    turn = replace_next(state, event.at, serving)
    if turn is not None:
        return turn
    if canary.hold_passed:
        return promote(state, event.at, f"the hold step passed, and {serving}")
    return begin_step(enter_phase(state, Phase.CANARY, event.at, serving), len(canary.plan.steps) - 1)


def begin_step(state: State, step: int) -> Transition:
    """Request the step's split; its evidence counts once it is in force."""
    canary = state.canary
    if is_last := step == len(canary.plan.steps) - 1:
        state = record_shares(state, canary)
    fresh = keep_parity_counts(canary).with_fresh_step(holding=is_last)
    return route_step(replace(state, rollout=replace(fresh, step=step, parked="")))


def keep_parity_counts(canary: Canary) -> Canary:
    """Keep the counts of green and blue at equal load, from which the gain is measured."""
    step = canary.plan.steps[canary.step]
    if canary.step_since is None or not step.parity <= step.weight < ALL:
        return canary
    green, blue = canary.level
    return replace(canary, level=(green + canary.green_counts, blue + canary.blue_counts))


def route_step(state: State) -> Transition:
    """Route the step's share to green; nothing while it is suspended."""
    canary, running = state.canary, state.fleet.running
    weight = canary.plan.steps[canary.step].weight
    if canary.parked:
        return request_effect(state, route_to(running, *canary.greens))
    grown = len(canary.greens) > 1 or canary.green.replicas > 1
    if grown and weight < ALL:
        return request_effect(state, route_to((*canary.greens, *running)))
    if canary.earlier_greens:
        return request_effect(state, route_to(canary.greens, *running))
    return request_effect(state, split_route(running, canary.green, weight, canary.plan.lease_s))


def resume_step(state: State) -> Transition:
    """Continue the step after a restart of the daemon, with its evidence."""
    canary = state.canary
    return route_step(replace(state, rollout=replace(canary, evidence=canary.evidence.resumed())))


def on_step_routed(_: Rules, state: State, event: Routed) -> Transition:
    state = await_nothing(state)
    if state.split.planned is not None:  # a failover: the step goes on when it is over
        return without_effects(state)
    canary = state.canary
    note = (
        f"green is suspended without traffic: {canary.parked}"
        if canary.parked
        else f"green has {canary.plan.steps[canary.step].weight} % of the traffic"
    )
    canary = replace(canary, step_since=canary.step_since or event.at)
    return without_effects(replace(state, rollout=canary, note=note))


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    elsewhere = isinstance(state.effects.awaited, Route | Examine)
    result: OutcomeResult | None = "undecided" if elsewhere else result_of_loss(event)
    return roll_back(state, event.at, event.why, event.log, result=result)


def abort(_: Rules, state: State, event: Aborted) -> Transition:
    return roll_back(state, event.at, f"aborted by {event.actor}", result="aborted", reason=event.reason)


def on_lost_before_canary(rules: Rules, state: State, event: ServerLost) -> Transition:
    """A server was lost before green had traffic."""
    if is_green(state.canary, event):
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
    if is_green(state.canary, event):
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
    fleet = state.fleet
    left = fleet.running or fleet.stopped or state.canary.earlier_greens
    return event.gone and fleet.has(event.server) and not left
