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
from flettner.agent.domain.state import Phase, Rollout, State
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.blocks.verdict import begin_blocks, update_blocks
from flettner.agent.machine.hot_knobs import hot_values
from flettner.agent.machine.launching import sum_counts
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.restoring import TRIES, missing_server, restore
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    await_nothing,
    enter_cooldown,
    enter_phase,
    is_in_fleet,
    remember_outcome,
    request_effect,
    retry_later,
    without_effects,
)

LEASE_S = 5.0  # of the new values: four renewals may be late, and a dead daemon's trial ends soon
ENOUGH_BLOCKS = 10  # in which a gain could have shown: twice as many as the smallest proof takes
HELD = "held"


def begin_trial(state: State, at: datetime, note: str) -> Transition:
    """The first second draws the first block."""
    return without_effects(enter_phase(await_nothing(state), Phase.TRIAL, at, note))


def is_hot(state: State) -> bool:
    """Whether the latest rollout changes running servers, and has not ended."""
    rollout = state.rollout
    return rollout is not None and rollout.strategy == "hot" and rollout.ended_at is None


def arm_in_force(state: State) -> Arm | None:
    """None: it is changing."""
    if isinstance(state.effects.awaited, SetKnobs):
        return None
    return "candidate" if state.knobs is not None and state.knobs.lease_s is not None else "present"


def observe(rules: Rules, state: State, event: Observed) -> Transition:
    """Add this second to the block that is on, act on the verdict, and change the arm where a block ends."""
    rollout, arm = state.rollout, arm_in_force(state)
    if rollout is None or rollout.passed:
        return keep_alive(state, event.at)
    counts = sum_counts(state.fleet.running, event)
    if arm != "present":
        rollout = replace(rollout, exposed=rollout.exposed + counts)
    why = "; ".join(f"{name} {failure.why}" for name, failure in sorted(state.failing.items()))
    if why and arm == "candidate":
        return take_back(replace(state, rollout=rollout), event.at, f"the candidate is worse: {why}")
    blocks = rollout.blocks or begin_blocks(
        rollout.id,
        slo=rules.slo,
        baseline=rollout.baseline,
        gain_needed=rollout.evidence.gain_needed,
        baseline_s=rollout.evidence.baseline_s,
        margin=rollout.plan.margin,
        calibration=rollout.evidence.calibration,
    )
    engines = tuple(event.engines[one.name] for one in state.fleet.running if one.name in event.engines)
    seen = engines if len(engines) == len(state.fleet.running) else ()
    second = BlockSecond(counts=counts, engines=seen, in_force=arm, blind=event.blind or why)
    blocks, verdict = update_blocks(blocks, second, slo=rules.slo)
    rollout = replace(rollout, blocks=blocks, step_bad=verdict.bad, waits=verdict.waits or verdict.why)
    return _apply_verdict(replace(state, rollout=rollout), rollout, event.at, verdict)


def _apply_verdict(state: State, rollout: Rollout, at: datetime, verdict: Verdict) -> Transition:
    limit_s = rollout.plan.steps[-1].at_most_s
    if verdict.kind == "fail":
        return take_back(state, at, verdict.why)
    if verdict.kind == "futile":
        return take_back(state, at, verdict.why, result="no_gain")
    if verdict.kind == "pass":
        passed = replace(state, note=verdict.why, rollout=replace(rollout, passed=True, why=verdict.why))
        return _set_arm(passed, "candidate", lease_s=None)
    if at - rollout.started_at > timedelta(seconds=limit_s):
        why = f"no verdict within {limit_s:.0f} s: {verdict.waits or verdict.why}"
        shown = rollout.blocks is not None and rollout.blocks.results >= ENOUGH_BLOCKS
        return take_back(state, at, why, result="no_gain" if verdict.lacks_gain and shown else "undecided")
    if (verdict.kind == "hold") is not state.note.startswith(HELD):
        note = f"{HELD}: {verdict.why}" if verdict.kind == "hold" else "blocks count again"
        state = replace(state, note=note)
    arm = rollout.blocks.arm if rollout.blocks is not None else "present"
    if arm_in_force(state) in (None, arm):
        return keep_alive(state, at)
    return _set_arm(state, arm, lease_s=LEASE_S if arm == "candidate" else None)


def _set_arm(state: State, arm: Arm, *, lease_s: float | None) -> Transition:
    """Request the values of this arm on all servers that run."""
    servers = state.fleet.running
    setting = dict(state.fleet.servers[0].setting) if state.fleet.servers else {}
    if arm == "candidate" and state.suggestion is not None:
        setting |= state.suggestion.proposal.to
    values = hot_values(state.fleet.servers, setting)
    change = SetKnobs(number=0, epoch=state.epoch, servers=servers, values=values, lease_s=lease_s)
    state, effects = request_effect(state, change)
    if state.knobs is not None:  # one that is down gets the values when it is back
        state = replace(state, knobs=replace(state.knobs, servers=state.fleet.servers))
    return state, effects


def _result_under(arm: Arm | None) -> OutcomeResult:
    """What a failure of the servers says of the candidate: nothing while the present values are in force."""
    return "undecided" if arm == "present" else "rolled_back"


def on_set(_: Rules, state: State, event: KnobsSet) -> Transition:
    """The values are in force. After a pass they are the setting from now on."""
    rollout, suggestion = state.rollout, state.suggestion
    if not state.effects.is_awaited(event.number) or rollout is None or suggestion is None:
        return without_effects(state)
    state = await_nothing(state)
    if not rollout.passed:
        return without_effects(state)
    fleet = tuple(
        replace(one, setting={**one.setting, **suggestion.proposal.to}) for one in state.fleet.servers
    )
    state = replace(state, fleet=replace(state.fleet, servers=fleet))
    state = replace(state, rollout=replace(rollout, outcome="promoted", ended_at=event.at))
    state = remember_outcome(state, event.at, "promoted", rollout.why)
    return without_effects(enter_phase(state, Phase.OBSERVING, event.at, rollout.why))


def take_back(
    state: State, at: datetime, why: str, *, result: OutcomeResult = "rolled_back", reason: str = ""
) -> Transition:
    """Return to the present values at once, by one effect. `reason`: an operator's text."""
    rollout = state.rollout
    if rollout is None:
        return without_effects(state)
    state = remember_outcome(state, at, result, why)
    ended = replace(rollout, outcome="rolled_back", passed=False, why=f"{why}: {reason}" if reason else why)
    state = enter_phase(replace(state, rollout=ended), Phase.ROLLING_BACK, at, why)
    return _set_arm(state, "present", lease_s=None)


def on_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    """A change was not made, or the lease of the new values could not be renewed."""
    lease_lost = state.knobs is not None and event.number == state.knobs.number
    if not state.effects.is_awaited(event.number) and not lease_lost:
        return without_effects(state)
    return take_back(state, event.at, event.why, result="undecided")


def abort(_: Rules, state: State, event: Aborted) -> Transition:
    return take_back(state, event.at, f"aborted by {event.actor}", result="aborted", reason=event.reason)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """A server that exited has lost the values; one that is restored has those before the trial."""
    if not is_in_fleet(state, event):
        return without_effects(state)
    result = "undecided" if event.external else _result_under(arm_in_force(state))
    moved = take_back(state, event.at, f"{event.server}: {event.why}", result=result)
    return _leave_lost(rules, moved, event.at) if event.gone else moved


def on_lost_while_back(rules: Rules, state: State, event: ServerLost) -> Transition:
    if not is_in_fleet(state, event) or not event.gone:
        return without_effects(state)
    return _leave_lost(rules, without_effects(state), event.at)


def _leave_lost(rules: Rules, moved: Transition, at: datetime) -> Transition:
    """Restore a lost server of ours while the others get the present values back.

    One that flettner did not start is left to its owner.
    """
    state, effects = moved
    lost = missing_server(state)
    if state.rollout is None or (state.fleet.running and (lost is None or not lost.ours)):
        return moved
    if lost is None or not lost.ours:
        state, more = end_rollback(rules, state, at)
        return state, (*effects, *more)
    state, more = restore(rules, await_nothing(state), at, state.note)
    return state, (*effects, *more)


def on_back(rules: Rules, state: State, event: KnobsSet) -> Transition:
    return (
        end_rollback(rules, state, event.at)
        if state.effects.is_awaited(event.number)
        else without_effects(state)
    )


def on_back_failed(rules: Rules, state: State, event: EffectFailed) -> Transition:
    """Retry until the lease has ended by itself; the renewals repeat the present values from then on."""
    if not state.effects.is_awaited(event.number):
        return without_effects(state)
    if state.effects.tries + 1 >= TRIES:
        return end_rollback(rules, state, event.at)
    return without_effects(retry_later(state, event.at, event.why))


def end_rollback(rules: Rules, state: State, at: datetime) -> Transition:
    rollout = replace(state.rollout, ended_at=at) if state.rollout is not None else None
    why = f"rolled back: {rollout.why}" if rollout is not None else "rolled back"
    return enter_cooldown(rules, replace(await_nothing(state), rollout=rollout), at, why)


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
