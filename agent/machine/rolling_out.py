"""LAUNCHING, WARMING and CANARY: green comes up, takes its shares, and is judged."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from agent.domain.effects import Examine, KeepAlive, Launch, Route, WarmUp
from agent.domain.events import Aborted, EffectFailed, Launched, Observed, Routed, ServerLost, Warmed
from agent.domain.model import OutcomeResult, Server
from agent.domain.request_counts import RequestCounts
from agent.domain.state import Phase, Rollout, State
from agent.machine.promoting import promote
from agent.machine.replacing import counted, join, next_turn
from agent.machine.replacing import lost as lost_in_turn
from agent.machine.restoring import restore
from agent.machine.rolling_back import roll_back
from agent.machine.routes import over, split
from agent.machine.transitions import Moved, Rules, ask, awaited, enter, is_green, of_fleet, stay

ALL = 100
GRACE_S = 60.0  # beyond the actuator's own deadline: it should have answered by then


def prepare(_: Rules, state: State, event: Observed) -> Moved:
    """While green starts: blue's record under full load, and a deadline in case no answer comes."""
    rollout = state.rollout
    if rollout is None:
        return stay(state)
    if not state.vacated:
        record = rollout.record + arm_of_all(state.standing, event)
        trial = replace(rollout.trial, record_s=rollout.trial.record_s + 1.0)
        state = replace(state, rollout=replace(rollout, record=record, trial=trial))
    state = counted(state, event)
    limit_s = state.awaiting.deadline_s if isinstance(state.awaiting, Launch | WarmUp | Examine) else 0.0
    if event.at > rollout.phase_since + timedelta(seconds=limit_s + GRACE_S):
        return roll_back(state, event.at, f"{state.phase.value} took longer than {limit_s:.0f} s")
    if state.route is None:
        return stay(state)
    return state, (KeepAlive(route=state.route),)


def launched(_: Rules, state: State, event: Launched) -> Moved:
    rollout = state.rollout
    if rollout is None or not awaited(state, event.number):
        return stay(state)
    state = enter(
        replace(state, green=event.server), Phase.WARMING, event.at, f"{event.server.name} is healthy"
    )
    plan = rollout.plan
    return ask(
        state,
        WarmUp(number=0, server=event.server, requests=plan.warm_up_requests, deadline_s=plan.warm_up_s),
    )


def warmed(_: Rules, state: State, event: Warmed) -> Moved:
    if state.rollout is None or not awaited(state, event.number):
        return stay(state)
    if state.rollout.passed:
        return join(state, event.at)
    return take_step(enter(state, Phase.CANARY, event.at, "green is warm"), 0)


def joined(_: Rules, state: State, event: Routed) -> Moved:
    """The newest server serves: the next place; then all of them are held up to the last old one."""
    if state.rollout is None or state.green is None or not awaited(state, event.number):
        return stay(state)
    serving = f"{state.green.name} serves"
    turn = next_turn(state, event.at, serving)
    if turn is not None:
        return turn
    if state.rollout.held:
        return promote(state, event.at, f"held, and {serving}")
    return take_step(enter(state, Phase.CANARY, event.at, serving), len(state.rollout.plan.steps) - 1)


def take_step(state: State, step: int) -> Moved:
    """Ask for the step's split; its evidence counts from the moment it is in force."""
    rollout = state.rollout
    if state.green is None or rollout is None:
        return stay(state)
    rollout = replace(
        at_level(rollout),
        step=step,
        step_since=None,
        green=RequestCounts(),
        blue=RequestCounts(),
        trial=rollout.trial.next_step(),
        parked="",
        bad=rollout.bad + rollout.step_bad,
        step_bad=0,
    )
    return split_of_step(replace(state, rollout=rollout))


def at_level(rollout: Rollout) -> Rollout:
    """Keep what was counted at equal load beside blue: whether green is any better is read from it."""
    weight, parity = rollout.plan.steps[rollout.step].weight, rollout.plan.steps[rollout.step].parity
    if rollout.step_since is None or not parity <= weight < ALL:
        return rollout
    return replace(rollout, level=(rollout.level[0] + rollout.green, rollout.level[1] + rollout.blue))


def split_of_step(state: State) -> Moved:
    """The traffic that the step gives green; nothing while it is parked."""
    green, rollout = state.green, state.rollout
    if green is None or rollout is None:
        return stay(state)
    if rollout.parked:
        return ask(state, over(state.standing, *state.newcomers))
    if state.crew and rollout.plan.steps[rollout.step].weight < ALL:
        return ask(state, over((*state.newcomers, *state.standing)))
    if state.crew:
        return ask(state, over(state.newcomers, *state.standing))
    return ask(
        state, split(state.standing, green, rollout.plan.steps[rollout.step].weight, rollout.plan.lease_s)
    )


def resume_step(state: State) -> Moved:
    """The daemon was away: the same step again, with the evidence it had."""
    rollout = state.rollout
    if rollout is None:
        return stay(state)
    return split_of_step(replace(state, rollout=replace(rollout, trial=rollout.trial.resumed())))


def step_routed(_: Rules, state: State, event: Routed) -> Moved:
    rollout = state.rollout
    if rollout is None or not awaited(state, event.number):
        return stay(state)
    weight = rollout.plan.steps[rollout.step].weight
    note = (
        f"green waits without traffic: {rollout.parked}"
        if rollout.parked
        else f"green has {weight} % of the traffic"
    )
    rollout = replace(rollout, step_since=rollout.step_since or event.at)
    return stay(replace(state, awaiting=None, rollout=rollout, note=note))


def arm_of_all(servers: Sequence[Server], event: Observed) -> RequestCounts:
    return sum((event.arms.get(server.name, RequestCounts()) for server in servers), RequestCounts())


def failed(_: Rules, state: State, event: EffectFailed) -> Moved:
    if not awaited(state, event.number):
        return stay(state)
    result: OutcomeResult | None = "undecided" if isinstance(state.awaiting, Route | Examine) else None
    return roll_back(state, event.at, event.why, event.log, result=result)


def abort(_: Rules, state: State, event: Aborted) -> Moved:
    return roll_back(state, event.at, f"aborted by {event.actor}: {event.reason}", result="denied")


def lost_early(rules: Rules, state: State, event: ServerLost) -> Moved:
    """A server is lost before green had traffic."""
    if is_green(state, event):
        return roll_back(state, event.at, f"green: {event.why}", event.log, hung=True)
    if not last_of_fleet(state, event):
        return lost_in_turn(rules, state, event)
    why = f"blue was lost: {event.why}"
    warm = state.phase is Phase.WARMING
    return promote(state, event.at, why) if warm else restore(rules, state, event.at, why)


def lost_in_canary(rules: Rules, state: State, event: ServerLost) -> Moved:
    """Green lost: back to blue. Blue lost: green, healthy and warm, is all there is."""
    if is_green(state, event):
        return roll_back(state, event.at, f"green: {event.why}", event.log, hung=True)
    if not last_of_fleet(state, event):
        return lost_in_turn(rules, state, event)
    why = f"blue was lost ({event.why}): green is the only healthy server"
    return promote(state, event.at, why)


def last_of_fleet(state: State, event: ServerLost) -> bool:
    """The only old server that was left has ended: there is nothing to go back to."""
    return event.gone and of_fleet(state, event) and not (state.standing or state.vacated or state.crew)
