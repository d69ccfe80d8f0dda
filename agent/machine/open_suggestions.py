"""The open suggestions of a target: their order, and how each ends. Pure.

Several may be open, one at a time is checked or carried out. An ended one is in `State.ended` until the next
step, so that the journal has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from flettner.agent.domain.effects import Preflight
from flettner.agent.domain.events import Event
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.state import Phase, State, Suggestion
from flettner.agent.machine.guard import PERSON
from flettner.agent.machine.transitions import await_nothing, enter_phase
from flettner.rules.precedence import ranked
from flettner.vllm_facts.values import ChangeClass, Knob, Value

MOST = 3  # open at a time
PENDING = frozenset({"checking", "open"})

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
    asked = [one for one in suggestions if is_from_person(one)]
    ordered = ranked([_RankedSuggestion(one.proposal, one) for one in suggestions if not is_from_person(one)])
    proposed = (*ordered.kept, *(lost.what for lost in ordered.outranked))
    return (*asked, *(one.suggestion for one in proposed))


def is_from_person(suggestion: Suggestion) -> bool:
    return suggestion.proposal.rule == PERSON


def barred_approver(state: State, suggestion: Suggestion) -> str:
    """The operator who may not approve it, having proposed it; empty: every operator may."""
    return suggestion.policy if state.approval == "other" and is_from_person(suggestion) else ""


def share_a_knob(one: Suggestion, other: Suggestion) -> bool:
    return bool(one.proposal.to.keys() & other.proposal.to.keys())


def is_checking(state: State) -> bool:
    return (
        state.phase is Phase.CHECKING
        and state.suggestion is not None
        and state.suggestion.status == "checking"
    )


def find_pending(state: State, id_: str) -> Suggestion | None:
    """The suggestion with this id, if it is open or being checked."""
    pending = [state.suggestion] if state.suggestion and state.suggestion.status in PENDING else []
    return next((one for one in (*pending, *state.also_open) if one.id == id_), None)


def replace_open(state: State, open_: Sequence[Suggestion]) -> State:
    """The state with these open suggestions, in their order. The phase stays."""
    ordered = by_rank(open_)
    if is_checking(state) or not ordered:
        return replace(state, also_open=ordered)
    return replace(state, suggestion=ordered[0], also_open=ordered[1:])


def end_suggestion(state: State, id_: str, status: Ending, why: str, by: str = "") -> State:
    """End one that is open or being checked; `why` becomes its last note. The phase stays.

    The next one takes its place as the first; the last one stays in the state.
    """
    suggestion = find_pending(state, id_)
    if suggestion is None:
        return state
    notes = (*suggestion.notes, why) if why else suggestion.notes
    ended = replace(suggestion, status=status, notes=notes, decided_by=by)
    state = replace(state, ended=(*state.ended, ended))
    rest = tuple(one for one in state.open_suggestions if one.id != id_)
    if suggestion.status == "checking":
        state = replace(state, suggestion=ended)
        if isinstance(state.effects.awaited, Preflight):
            state = await_nothing(state)
    elif not is_checking(state) and not rest:
        return replace(state, suggestion=ended, also_open=())
    return replace_open(state, rest)


def end_all(state: State, status: Ending, why: str) -> State:
    """End all that are open or being checked. The phase stays."""
    for one in (state.suggestion, *state.also_open):
        if one is not None:
            state = end_suggestion(state, one.id, status, why)
    return state


def end_check(state: State, at: datetime, why: str) -> State:
    """End the suggestion that is being checked as superseded; what was open stays open."""
    if state.suggestion is None or not is_checking(state):
        return state
    return enter_fitting_phase(end_suggestion(state, state.suggestion.id, "superseded", why), at, why)


def enter_fitting_phase(state: State, at: datetime, note: str) -> State:
    """Enter the phase that fits what is left open, with this note."""
    if is_checking(state):
        return replace(state, note=note)
    phase = Phase.PROPOSED if state.open_suggestions else Phase.OBSERVING
    return replace(state, note=note) if state.phase is phase else enter_phase(state, phase, at, note)


def bring_forward(state: State, id_: str, why: str) -> State:
    """Make this open suggestion the one in `State.suggestion`; a check of another one ends."""
    if is_checking(state) and state.suggestion is not None:
        state = end_suggestion(state, state.suggestion.id, "superseded", why)
    chosen = next(one for one in state.open_suggestions if one.id == id_)
    rest = tuple(one for one in state.open_suggestions if one.id != id_)
    return replace(state, suggestion=chosen, also_open=rest)


def forget_ended(state: State, _: Event) -> State:
    """The journal has the suggestions that ended in the step before."""
    return replace(state, ended=()) if state.ended else state


def end_each(state: State, status: Ending, reason: Callable[[Suggestion], str], at: datetime) -> State:
    """End each open suggestion for which there is a reason, and enter the phase that then fits."""
    found = {one.id: why for one in state.open_suggestions if (why := reason(one))}
    for id_, why in found.items():
        state = end_suggestion(state, id_, status, why)
    return enter_fitting_phase(state, at, "; ".join(found.values())) if found else state
