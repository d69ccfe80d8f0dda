"""CHECKING: the engine runs a preflight of a suggestion before an operator decides on it."""

from dataclasses import replace
from datetime import datetime, timedelta

from agent.domain.effects import Preflight
from agent.domain.events import Denied, EffectFailed, Observed, Preflighted
from agent.domain.model import OutcomeResult
from agent.domain.state import Phase, State, Suggestion
from agent.judge.goodput import fails_badly
from agent.machine.default_plan import plan_for
from agent.machine.guard import altering_knobs
from agent.machine.lease import keep_alive, recent_traffic
from agent.machine.starting import start_rollout
from agent.machine.transitions import (
    Moved,
    Rules,
    close_suggestion,
    enter_phase,
    is_awaited,
    remember_outcome,
    request_effect,
    without_effects,
)

ANSWER_S = 900.0  # vLLM's own check takes a minute; the engine's deadline is shorter than this


def check_suggestion(rules: Rules, state: State, suggestion: Suggestion, at: datetime) -> Moved:
    """Request the preflight; this suggestion supersedes the previous one."""
    asked = replace(
        enter_phase(state, Phase.CHECKING, at, suggestion.proposal.why),
        suggestions=state.suggestions + 1,
        suggestion=suggestion,
    )
    setting = {**(state.blue.setting if state.blue else {}), **suggestion.proposal.to}
    return request_effect(
        asked, Preflight(number=0, servers=state.standing, setting=setting, wanted=rules.strategy)
    )


def on_preflighted(rules: Rules, state: State, event: Preflighted) -> Moved:
    """Propose the change; in `auto` mode an auto-class change inside its bounds needs no approval."""
    suggestion = state.suggestion
    if suggestion is None or not is_awaited(state, event.number):
        return without_effects(state)
    prospect = event.prospect
    if prospect.problem:
        result: OutcomeResult = "refused" if prospect.lasting else "undecided"
        return refuse_suggestion(state, event.at, prospect.problem, result)
    recent, recent_s = recent_traffic(state, event.at)
    rate_rps = recent.asked / recent_s if recent_s else None
    plan = plan_for(rules.plan, prospect, len(state.standing), rate_rps, failing=fails_badly(recent))
    if rules.exam.always or altering_knobs(suggestion.proposal):
        plan = replace(plan, examine_s=rules.exam.at_most_s)
    forecast = rules.judge.forecast(
        plan, slo=rules.slo, recent=recent, recent_s=recent_s, calibration=state.calibration
    )
    sealed = rules.guard.seal(suggestion, prospect, at=event.at, plan=plan, forecast=forecast)
    open_ = replace(state, suggestion=sealed, awaiting=None)
    proposed = enter_phase(open_, Phase.PROPOSED, event.at, sealed.proposal.why)
    bounds = [rules.guard.bounds.get(knob) for knob in sealed.proposal.to]
    if state.mode != "auto" or sealed.proposal.klass != "auto" or None in bounds or state.paused:
        return without_effects(proposed)
    allowed = "; ".join(
        f"{k} in {b.min}..{b.max}" for k, b in zip(sealed.proposal.to, bounds, strict=True) if b
    )
    return start_rollout(proposed, event.at, f"auto mode, inside the bounds {allowed}")


def refuse_suggestion(state: State, at: datetime, why: str, result: OutcomeResult) -> Moved:
    suggestion = state.suggestion
    if suggestion is None:
        return without_effects(state)
    state = remember_outcome(state, at, result, why)
    refused = replace(suggestion, status="refused", notes=(*suggestion.notes, why))
    ended = replace(state, suggestion=refused, awaiting=None)
    return without_effects(enter_phase(ended, Phase.OBSERVING, at, f"{suggestion.id} is refused: {why}"))


def on_preflight_failed(_: Rules, state: State, event: EffectFailed) -> Moved:
    """The preflight failed, which is no evidence about the values."""
    if not is_awaited(state, event.number):
        return without_effects(state)
    return refuse_suggestion(state, event.at, event.why, "undecided")


def await_preflight(_: Rules, state: State, event: Observed) -> Moved:
    suggestion = state.suggestion
    if suggestion is not None and event.at > suggestion.made_at + timedelta(seconds=ANSWER_S):
        return refuse_suggestion(
            state, event.at, f"the preflight did not finish within {ANSWER_S:.0f} s", "undecided"
        )
    return keep_alive(state, event.at)


def deny(_: Rules, state: State, event: Denied) -> Moved:
    suggestion = state.suggestion
    if suggestion is None or suggestion.id != event.suggestion:
        return without_effects(state)
    denied = replace(suggestion, status="denied", decided_by=event.actor)
    state = remember_outcome(
        replace(state, suggestion=denied, awaiting=None), event.at, "denied", event.reason
    )
    note = f"{event.actor} denied {suggestion.id}: {event.reason}"
    return without_effects(enter_phase(state, Phase.OBSERVING, event.at, note))


def withdraw_suggestion(state: State, at: datetime, why: str) -> State:
    """Withdraw the suggestion and its preflight."""
    awaiting = None if isinstance(state.awaiting, Preflight) else state.awaiting
    ended = replace(state, suggestion=close_suggestion(state.suggestion, "superseded"), awaiting=awaiting)
    return enter_phase(ended, Phase.OBSERVING, at, why)
