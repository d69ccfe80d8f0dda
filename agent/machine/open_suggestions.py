"""The open suggestions of a target: their order, and how each ends. Pure.

Several may be open, one at a time is checked or carried out. An ended one is in `Suggestions.ended` until the
next step, so that the journal has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from flettner.agent.domain.effects import Preflight
from flettner.agent.domain.events import Event
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.guard import PERSON
from flettner.agent.machine.transitions import await_nothing, enter_phase
from flettner.rules.precedence import ranked
from flettner.vllm_facts.values import ChangeClass, Knob, Value

MOST = 3  # open at a time

Ending = Literal["expired", "superseded", "withdrawn", "refused", "denied"]


@dataclass(frozen=True, slots=True)
class RankedProposal:
    """A proposal as flettner.rules.precedence ranks it."""

    proposal: Proposal

    @property
    def rule(self) -> str:
        return self.proposal.rule

    @property
    def to(self) -> Mapping[Knob, Value]:
        return self.proposal.to

    @property
    def klass(self) -> ChangeClass:
        return self.proposal.klass

    @property
    def mitigation(self) -> bool:
        return self.proposal.mitigation


@dataclass(frozen=True, slots=True)
class _RankedSuggestion(RankedProposal):
    suggestion: Suggestion


def by_rank(suggestions: Sequence[Suggestion]) -> tuple[Suggestion, ...]:
    """What a person asked for comes first, then the order of the rules."""
    asked = [suggestion for suggestion in suggestions if is_from_person(suggestion)]
    ordered = ranked(
        [
            _RankedSuggestion(suggestion.proposal, suggestion)
            for suggestion in suggestions
            if not is_from_person(suggestion)
        ]
    )
    proposed = (*ordered.winners, *(lost.what for lost in ordered.outranked))
    return (*asked, *(proposal.suggestion for proposal in proposed))


def is_from_person(suggestion: Suggestion) -> bool:
    return suggestion.proposal.rule == PERSON


def barred_approver(state: State, suggestion: Suggestion) -> str:
    """The operator who may not approve it, having proposed it; empty: every operator may."""
    return suggestion.policy if state.approval == "other" and is_from_person(suggestion) else ""


def share_a_knob(suggestion: Suggestion, other: Suggestion) -> bool:
    return bool(suggestion.proposal.to.keys() & other.proposal.to.keys())


def replace_open(state: State, open_: Sequence[Suggestion]) -> State:
    """The state with these open suggestions, by rank. The phase stays."""
    return replace(state, suggestions=replace(state.suggestions, open=by_rank(open_)))


def end_suggestion(state: State, suggestion: Suggestion, status: Ending, why: str, by: str = "") -> State:
    """End one that is open or being checked; `why` becomes its last note. The phase stays."""
    notes = (*suggestion.notes, why) if why else suggestion.notes
    ended = replace(suggestion, status=status, notes=notes, decided_by=by)
    suggestions = replace(state.suggestions, ended=(*state.suggestions.ended, ended))
    if suggestion == suggestions.checking:
        state = replace(state, suggestions=replace(suggestions, checking=None))
        return await_nothing(state) if isinstance(state.effects.awaited, Preflight) else state
    return replace_open(
        replace(state, suggestions=suggestions),
        [other for other in suggestions.open if other.id != suggestion.id],
    )


def end_all(state: State, why: str) -> State:
    """End all that are open or being checked as superseded. The phase stays."""
    for suggestion in state.suggestions.pending:
        state = end_suggestion(state, suggestion, "superseded", why)
    return state


def end_check(state: State, at: datetime, why: str) -> State:
    """End the suggestion that is being checked as superseded. Open suggestions stay open."""
    checking = state.suggestions.checking
    if checking is None:
        return state
    return enter_fitting_phase(end_suggestion(state, checking, "superseded", why), at, why)


def enter_fitting_phase(state: State, at: datetime, note: str) -> State:
    """Enter the phase that fits the suggestions that are still open, with this note."""
    if state.suggestions.checking is not None:
        return replace(state, note=note)
    phase = Phase.PROPOSED if state.suggestions.open else Phase.OBSERVING
    return replace(state, note=note) if state.phase is phase else enter_phase(state, phase, at, note)


def forget_ended(state: State, _: Event) -> State:
    """The journal has the suggestions that ended in the step before."""
    if not state.suggestions.ended:
        return state
    return replace(state, suggestions=replace(state.suggestions, ended=()))


def end_each(state: State, status: Ending, reason: Callable[[Suggestion], str], at: datetime) -> State:
    """End each open suggestion for which there is a reason, and enter the phase that then fits."""
    whys = {suggestion.id: why for suggestion in state.suggestions.open if (why := reason(suggestion))}
    for suggestion in state.suggestions.open:
        if suggestion.id in whys:
            state = end_suggestion(state, suggestion, status, whys[suggestion.id])
    return enter_fitting_phase(state, at, "; ".join(whys.values())) if whys else state
