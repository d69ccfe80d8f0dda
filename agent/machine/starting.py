"""From an approval to the first effect of a rollout."""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.model import Plan, Proposal
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.canary_begin import begin_canary
from flettner.agent.machine.guard import PERSON, base_digest
from flettner.agent.machine.hot_trial import begin_trial, build_change
from flettner.agent.machine.open_suggestions import end_all, end_check, end_suggestion, enter_fitting_phase
from flettner.agent.machine.regimes import begin_regimes
from flettner.agent.machine.saving import begin_saving
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    without_effects,
)


def start_rollout(rules: Rules, state: State, suggestion: Suggestion, at: datetime, by: str) -> Transition:
    """Carry out an open suggestion. The others end."""
    state = end_check(state, at, f"{suggestion.id} was approved")
    if suggestion.plan is None or not state.fleet.running:
        return without_effects(state)
    if any(base_digest(server.setting) != suggestion.base for server in state.fleet.running):
        why = f"{suggestion.id} was made for a setting that is no longer in force"
        return without_effects(enter_fitting_phase(end_all(state, why), at, why))
    for other in state.suggestions.open:
        if other.id != suggestion.id:
            why = f"{suggestion.id} was approved; what is still useful is suggested again"
            state = end_suggestion(state, other, "superseded", why)
    state = replace(state, suggestions=replace(state.suggestions, open=()), sightings={})
    approved = replace(suggestion, status="approved", decided_by=by)
    if suggestion.proposal.regimes is not None:
        id_, note = _rollout_id(state, approved), _note(approved)
        return begin_regimes(state, id_, approved, suggestion.plan, at, note)
    if suggestion.preflight.strategy == "save":
        id_, note = _rollout_id(state, approved), _note(approved)
        return begin_saving(state, id_, approved, suggestion.plan, at, note)
    start = _start_hot_change if suggestion.preflight.strategy == "hot" else _start_canary
    return start(rules, state, approved, suggestion.plan, at)


def _start_hot_change(
    rules: Rules, state: State, approved: Suggestion, plan: Plan, at: datetime
) -> Transition:
    """Begin a trial on the servers that run; no server starts."""
    needed = gain_needed(approved.proposal, plan)
    rollout = build_change(rules, state, _rollout_id(state, approved), approved, plan, at, gain_needed=needed)
    return begin_trial(replace(state, rollout=rollout), at, _note(approved))


def _start_canary(rules: Rules, state: State, approved: Suggestion, plan: Plan, at: datetime) -> Transition:
    needed, id_ = gain_needed(approved.proposal, plan), _rollout_id(state, approved)
    return begin_canary(rules, state, id_, approved, plan, at, gain_needed=needed, note=_note(approved))


def _rollout_id(state: State, approved: Suggestion) -> str:
    return f"{state.target}-{approved.id.removeprefix(f'{state.target}-s')}"


def _note(approved: Suggestion) -> str:
    return f"{approved.id} approved by {approved.decided_by}"


def gain_needed(proposal: Proposal, plan: Plan) -> GainNeeded:
    """Whether the change must be measurably better; a mitigation only if blue misses its SLO.

    Where blue meets its SLO, a mitigation prevents a harm that has not occurred: it need not be better, nor
    need a change that takes less hardware.
    """
    if proposal.rule == PERSON or not plan.gain_needed:
        return "never"
    return "if_missed" if proposal.mitigation or proposal.cheaper else "always"
