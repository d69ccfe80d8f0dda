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
    RolloutStart,
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
    start = RolloutStart(
        id=f"{state.target}-{approved.id.removeprefix(f'{state.target}-s')}",
        suggestion=approved,
        plan=suggestion.plan,
        at=at,
        note=f"{approved.id} approved by {by}",
        gain_needed=gain_needed(approved.proposal, suggestion.plan),
    )
    if approved.proposal.regimes is not None:
        return begin_regimes(state, start)
    if approved.preflight.strategy == "save":
        return begin_saving(state, start)
    if approved.preflight.strategy == "hot":  # no server starts
        state = replace(state, rollout=build_change(rules, state, start))
        return begin_trial(state, at, start.note)
    return begin_canary(rules, state, start)


def gain_needed(proposal: Proposal, plan: Plan) -> GainNeeded:
    """Whether the change must be measurably better; a mitigation only if blue misses its SLO.

    Where blue meets its SLO, a mitigation prevents a harm that has not occurred: it need not be better, nor
    need a change that takes less hardware.
    """
    if proposal.rule == PERSON or not plan.gain_needed:
        return "never"
    return "if_missed" if proposal.mitigation or proposal.cheaper else "always"
