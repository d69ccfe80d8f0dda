"""TRIAL: a change that needs no restart. The present and the new values take turns on the servers that run.

    TRIAL ─candidate is better─▶ (set without a lease) ─▶ OBSERVING
      └─ worse, no gain, no verdict, abort, restart of the daemon ─▶ ROLLING_BACK ─▶ COOLDOWN

The new values are in force on a lease that is renewed every second: a daemon that dies takes them back. A
request is never touched, no server starts, and no share of traffic moves.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.blocks import Arm, BlockSecond
from flettner.agent.domain.effects import SetKnobs
from flettner.agent.domain.events import Aborted, EffectFailed, KnobsSet, Observed, ServerLost
from flettner.agent.domain.model import OutcomeResult
from flettner.agent.domain.rollout import HotChange
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.blocks.verdict import begin_blocks, update_blocks
from flettner.agent.judge.wording import describe_duration
from flettner.agent.machine.hot_knobs import hot_values
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.restoring import TRIES, missing_server, restore
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.traffic import recent_traffic
from flettner.agent.machine.transitions import (
    RolloutStart,
    Rules,
    Transition,
    await_nothing,
    enter_cooldown,
    enter_phase,
    remember_outcome,
    request_effect,
    retry_later,
    sum_counts,
    without_effects,
)

LEASE_S = 5.0  # of the new values: four renewals may be late, and a dead daemon's trial ends soon
ENOUGH_BLOCKS = 10  # in which a gain could have shown: twice as many as the smallest proof takes
HELD = "held"


def build_change(rules: Rules, state: State, start: RolloutStart) -> HotChange:
    """The rollout of a change on the servers that run, before its first block."""
    baseline, baseline_s = recent_traffic(state, start.at)
    trial = begin_blocks(
        start.id,
        slo=rules.slo,
        baseline=baseline,
        gain_needed=start.gain_needed,
        baseline_s=baseline_s,
        margin=start.plan.margin,
        calibration=state.traffic.calibration,
    )
    return HotChange(
        id=start.id,
        suggestion=start.suggestion,
        plan=start.plan,
        started_at=start.at,
        phase_since=start.at,
        baseline=baseline,
        trial=trial,
    )


def begin_trial(state: State, at: datetime, note: str) -> Transition:
    """The first second draws the first block."""
    return without_effects(enter_phase(await_nothing(state), Phase.TRIAL, at, note))


def set_at_once(state: State, at: datetime, note: str) -> Transition:
    """Put the candidate in force without a trial. The rollout has passed already."""
    return _set_arm(enter_phase(await_nothing(state), Phase.TRIAL, at, note), "candidate", lease_s=None)


def is_hot(state: State) -> bool:
    """Whether the latest rollout changes running servers, and has not ended."""
    return isinstance(state.rollout, HotChange) and state.rollout.ended_at is None


def arm_in_force(state: State) -> Arm | None:
    """None: it is changing."""
    if isinstance(state.effects.awaited, SetKnobs):
        return None
    return "candidate" if state.knobs is not None and state.knobs.lease_s is not None else "present"


def observe(rules: Rules, state: State, event: Observed) -> Transition:
    """Add this second to the block that is on, act on the verdict, and change the arm where a block ends."""
    change, arm, running = state.hot_change, arm_in_force(state), state.fleet.running
    if change.passed:
        return keep_alive(state, event.at)
    counts = sum_counts(running, event)
    if arm != "present":
        change = replace(change, exposed=change.exposed + counts)
    why = "; ".join(f"{name} {failure.why}" for name, failure in sorted(state.failing.items()))
    if why and arm == "candidate":
        return take_back(replace(state, rollout=change), event.at, f"the candidate is worse: {why}")
    engines = tuple(event.engines[server.name] for server in running if server.name in event.engines)
    seen = engines if len(engines) == len(running) else ()
    second = BlockSecond(counts=counts, engines=seen, in_force=arm, blind=event.blind or why)
    trial, verdict = update_blocks(change.trial, second, slo=rules.slo)
    change = replace(change, trial=trial, bad=verdict.bad, waits=verdict.waits or verdict.why)
    return _apply_verdict(replace(state, rollout=change), event.at, verdict)


def _apply_verdict(state: State, at: datetime, verdict: Verdict) -> Transition:
    change = state.hot_change
    limit_s = change.plan.steps[-1].at_most_s
    if verdict.kind == "fail":
        return take_back(state, at, verdict.why)
    if verdict.kind == "futile":
        return take_back(state, at, verdict.why, result="no_gain")
    if verdict.kind == "pass":
        passed = replace(state, note=verdict.why, rollout=replace(change, passed=True, why=verdict.why))
        return _set_arm(passed, "candidate", lease_s=None)
    if at - change.started_at > timedelta(seconds=limit_s):
        why = f"no verdict within {describe_duration(limit_s)}: {verdict.waits or verdict.why}"
        shown = change.trial.results >= ENOUGH_BLOCKS
        return take_back(state, at, why, result="no_gain" if verdict.lacks_gain and shown else "undecided")
    if (verdict.kind == "inadmissible") is not state.note.startswith(HELD):
        note = f"{HELD}: {verdict.why}" if verdict.kind == "inadmissible" else "blocks count again"
        state = replace(state, note=note)
    arm = change.trial.arm
    if arm_in_force(state) in (None, arm):
        return keep_alive(state, at)
    return _set_arm(state, arm, lease_s=LEASE_S if arm == "candidate" else None)


def _set_arm(state: State, arm: Arm, *, lease_s: float | None) -> Transition:
    """Request the values of this arm on all servers that run."""
    servers = state.fleet.servers
    setting = dict(servers[0].setting)
    if arm == "candidate":
        setting |= state.hot_change.suggestion.proposal.to
    values = hot_values(servers, setting)
    change = SetKnobs(
        number=0, epoch=state.epoch, servers=state.fleet.running, values=values, lease_s=lease_s
    )
    state, effects = request_effect(state, change)
    if state.knobs is not None:  # one that is down gets the values when it is back
        state = replace(state, knobs=replace(state.knobs, servers=servers))
    return state, effects


def _result_under(arm: Arm | None) -> OutcomeResult:
    """What a failure of the servers says of the candidate: nothing while the present values are in force."""
    return "undecided" if arm == "present" else "rolled_back"


def on_set(_: Rules, state: State, event: KnobsSet) -> Transition:
    """The values are in force. After a pass they are the setting from now on."""
    state, change = await_nothing(state), state.hot_change
    if not change.passed:
        return without_effects(state)
    to = change.suggestion.proposal.to
    servers = tuple(replace(server, setting={**server.setting, **to}) for server in state.fleet.servers)
    state = replace(
        state,
        fleet=replace(state.fleet, servers=servers),
        rollout=replace(change, outcome="promoted", ended_at=event.at),
    )
    state = remember_outcome(state, change.suggestion, event.at, "promoted", change.why)
    return without_effects(enter_phase(state, Phase.OBSERVING, event.at, change.why))


def take_back(
    state: State, at: datetime, why: str, *, result: OutcomeResult = "rolled_back", reason: str = ""
) -> Transition:
    """Return to the present values at once, by one effect. `reason`: an operator's text."""
    change = state.hot_change
    state = remember_outcome(state, change.suggestion, at, result, why)
    why_ended = f"{why}: {reason}" if reason else why
    change = replace(change, outcome="rolled_back", passed=False, why=why_ended)
    state = enter_phase(replace(state, rollout=change), Phase.ROLLING_BACK, at, why)
    return _set_arm(state, "present", lease_s=None)


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    """A change was not made, or the lease of the new values could not be renewed."""
    return take_back(state, event.at, event.why, result="undecided")


def abort(_: Rules, state: State, event: Aborted) -> Transition:
    return take_back(state, event.at, f"aborted by {event.actor}", result="aborted", reason=event.reason)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """A server that exited has lost the values; one that is restored has those before the trial."""
    if not state.fleet.has(event.server):
        return without_effects(state)
    result = "undecided" if event.external else _result_under(arm_in_force(state))
    moved = take_back(state, event.at, f"{event.server}: {event.why}", result=result)
    return _leave_lost(rules, moved, event.at) if event.gone else moved


def on_lost_while_back(rules: Rules, state: State, event: ServerLost) -> Transition:
    if not event.gone or not state.fleet.has(event.server):
        return without_effects(state)
    return _leave_lost(rules, without_effects(state), event.at)


def _leave_lost(rules: Rules, moved: Transition, at: datetime) -> Transition:
    """Restore a lost server of ours while the others get the present values back.

    One that flettner did not start is left to its owner.
    """
    state, effects = moved
    lost = missing_server(state)
    ours = lost is not None and lost.ours
    if not ours and state.fleet.running:
        return moved
    if not ours:
        state, more = end_rollback(rules, state, at)
        return state, (*effects, *more)
    state, more = restore(rules, await_nothing(state), at, state.note)
    return state, (*effects, *more)


def on_back(rules: Rules, state: State, event: KnobsSet) -> Transition:
    return end_rollback(rules, state, event.at)


def on_back_failed(rules: Rules, state: State, event: EffectFailed) -> Transition:
    """Retry until the lease has ended by itself; the renewals repeat the present values from then on."""
    if state.effects.tries + 1 >= TRIES:
        return end_rollback(rules, state, event.at)
    return without_effects(retry_later(state, event.at, event.why))


def observe_while_back(_: Rules, state: State, event: Observed) -> Transition:
    return keep_alive(state, event.at)


def end_rollback(rules: Rules, state: State, at: datetime) -> Transition:
    change = replace(state.hot_change, ended_at=at)
    state = replace(await_nothing(state), rollout=change)
    state, _ = enter_cooldown(rules, state, at, f"rolled back: {change.why}")
    plan, running = state.split.intended, state.fleet.running
    if plan is None or all(plan.weights.get(server.name) for server in running):
        return without_effects(state)
    return request_effect(state, route_to(running))  # a server that had exited meanwhile runs again


def resume(rules: Rules, state: State, at: datetime, *, drifted: bool) -> Transition:
    """After a restart of the daemon the lease has ended, or soon will: the trial is over.

    After a third party's change its values are in force, and stay.
    """
    moved = without_effects(state)
    if state.phase is Phase.TRIAL:
        why = state.note if drifted else "the daemon started while the change was tried"
        moved = take_back(state, at, why, result="undecided")
    elif not drifted:
        moved = _set_arm(state, "present", lease_s=None)
    state, _ = moved
    if drifted:
        return end_rollback(rules, replace(state, knobs=None), at)
    return moved if state.fleet.running else _leave_lost(rules, moved, at)
