"""CANARY, once a second: what the judge says of green, and what follows of it."""

from dataclasses import replace
from datetime import datetime, timedelta

from agent.domain.effects import Route
from agent.domain.events import Observed
from agent.domain.ports import Verdict
from agent.domain.request_counts import RequestCounts
from agent.domain.state import State
from agent.domain.trial import Observation
from agent.machine.guard import PERSON
from agent.machine.lease import keep_alive
from agent.machine.promoting import promote
from agent.machine.replacing import replace_next
from agent.machine.rolling_back import roll_back
from agent.machine.rolling_out import begin_step, route_step, sum_counts
from agent.machine.transitions import Moved, Rules, without_effects

HEARD_S = 60.0  # a pass needs a request of green's within so many seconds: old evidence proves nothing of now
PARK_AFTER_S = 120.0  # nothing of green can be evidence for so long: it gets no traffic until it can
HELD = "held"


def judge(rules: Rules, state: State, event: Observed) -> Moved:
    """Count this second's requests, then ask the judge: back, on, or wait."""
    rollout = state.rollout
    if state.green is None or rollout is None:
        return without_effects(state)
    new_green, new_blue = sum_counts(state.newcomers, event), sum_counts(state.standing, event)
    heard_at = event.at if new_green.total else rollout.heard_at
    rollout = replace(rollout, exposed=rollout.exposed + new_green, heard_at=heard_at)
    if rollout.step_since is None or isinstance(state.awaiting, Route):
        return keep_alive(replace(state, rollout=rollout), event.at)
    rollout = replace(rollout, green=rollout.green + new_green, blue=rollout.blue + new_blue)
    trial, verdict = rules.judge.update(
        rollout.trial,
        step=rollout.plan.steps[rollout.step],
        slo=rules.slo,
        observation=observation_of(state, event, new_green),
        green=rollout.green,
        blue=rollout.blue,
        record=rollout.record,
    )
    rollout = replace(rollout, trial=trial, step_bad=max(rollout.step_bad, verdict.bad))
    return apply_verdict(rules, replace(state, rollout=rollout), event.at, verdict)


def apply_verdict(rules: Rules, state: State, at: datetime, verdict: Verdict) -> Moved:
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    step = rollout.plan.steps[rollout.step]
    if verdict.kind == "fail":
        return roll_back(state, at, f"at {step.weight} %: {verdict.why}")
    if verdict.kind == "pass" and not answered_recently(rollout.heard_at, at):
        verdict = replace(verdict, kind="wait", why=f"nothing heard of green for {HEARD_S:.0f} s")
    if at - (rollout.step_since or at) > timedelta(seconds=step.at_most_s):
        why = f"no verdict at {step.weight} % within {step.at_most_s:.0f} s: {verdict.why}"
        return roll_back(state, at, why, result="undecided")
    if verdict.kind == "hold":
        return hold_step(state, at, verdict.why)
    if rollout.parked:
        return route_step(replace(state, rollout=replace(rollout, parked="")))
    if verdict.kind == "pass":
        return advance_step(rules, state, at, f"{step.weight} % passed: {verdict.why}")
    if state.note.startswith(HELD):
        state = replace(state, note=f"green has {step.weight} % of the traffic; what was held counts again")
    return keep_alive(state, at)


def hold_step(state: State, at: datetime, why: str) -> Moved:
    """No evidence is no verdict; a green that nobody can see gets no traffic after a while."""
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    if not rollout.parked and rollout.trial.held_s >= PARK_AFTER_S and state.standing:
        return route_step(replace(state, rollout=replace(rollout, parked=why)))
    noted = rollout.parked or state.note.startswith(HELD)
    return keep_alive(state if noted else replace(state, note=f"{HELD}: {why}"), at)


def observation_of(state: State, event: Observed, green: RequestCounts) -> Observation:
    """What the judge hears of this second; the first old server's pulse stands for blue's."""
    newest = state.green.name if state.green else ""
    first = state.standing[0].name if state.standing else ""
    return Observation(
        at=event.at,
        green=green,
        blue={server.name: event.arms.get(server.name, RequestCounts()) for server in state.standing},
        green_pulse=event.pulses.get(newest),
        blue_pulse=event.pulses.get(first),
        blind=event.blind,
    )


def advance_step(rules: Rules, state: State, at: datetime, why: str) -> Moved:
    """The next share; before the last one, all traffic, the other places are turned; then promotion."""
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    last = len(rollout.plan.steps) - 1
    if rollout.step == last:
        return conclude_canary(rules, state, at, why)
    if rollout.step + 1 < last:
        return begin_step(replace(state, note=why), rollout.step + 1)
    passed = replace(state, note=why, rollout=replace(rollout, passed=True))
    return replace_next(passed, at, why) or begin_step(passed, last)


def conclude_canary(rules: Rules, state: State, at: datetime, why: str) -> Moved:
    """Not worse is enough for a mitigation, and for what a person wished; else doing nothing wins ties."""
    rollout, suggestion = state.rollout, state.suggestion
    if rollout is None or suggestion is None:
        return without_effects(state)
    proposal = suggestion.proposal
    gain = rules.judge.gain(
        rollout.trial, slo=rules.slo, level=rollout.level, green=rollout.green, record=rollout.record
    )
    state = replace(state, rollout=replace(rollout, gain=gain, held=True))
    if not gain and not (proposal.mitigation or proposal.rule == PERSON or not rollout.plan.gain_needed):
        return roll_back(state, at, f"no measurable gain: {why}", result="no_gain")
    why = f"{why}; {gain or 'no measurable gain, none was needed'}"
    return replace_next(state, at, why) or promote(state, at, why)


def answered_recently(heard_at: datetime | None, now: datetime) -> bool:
    return heard_at is not None and now - heard_at <= timedelta(seconds=HEARD_S)
