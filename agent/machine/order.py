"""One target after the other: a suggestion that waits for the promotion of another target's, or ends with it.

The first target of an order is the canary of the others. Nothing is remembered of an order but the id of the
suggestion ahead, in the proposal: what became of that is read from its target's state, also after a restart.
"""

from collections.abc import Callable
from dataclasses import replace

from flettner.agent.domain.events import Event, Observed
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.open_suggestions import end_suggestion, enter_fitting_phase, replace_open


def target_of_suggestion(id_: str) -> str:
    """Return "chat" of "chat-s4"."""
    return id_.rpartition("-s")[0]


def find_end(state: State | None, id_: str) -> str | None:
    """What became of a suggestion. `state`: of its target; None: that is not configured.

    Returns None while it is not decided, "" once it is promoted, else why it was not.
    """
    if state is None:
        return f"the target of {id_} is not in the config"
    if state.suggestions.find_pending(id_) is not None:
        return None
    rollout = state.rollout
    if rollout is None or rollout.suggestion.id != id_:
        return f"{id_} ended without a promotion"
    if rollout.ended_at is None:
        return None
    return "" if rollout.outcome == "promoted" else f"{id_} was rolled back"


def list_waiting(state: State) -> tuple[str, ...]:
    """The ids of other targets' suggestions that those of this target wait for."""
    return tuple(made.proposal.after for made in state.suggestions.pending if is_waiting(made))


def find_ends(state: State, find_state: Callable[[str], State | None]) -> dict[str, str]:
    """What became of those that are decided. `find_state`: the state of another target, by its name."""
    ends = {id_: find_end(find_state(target_of_suggestion(id_)), id_) for id_ in list_waiting(state)}
    return {id_: why for id_, why in ends.items() if why is not None}


def is_waiting(suggestion: Suggestion) -> bool:
    """Whether the promotion that it waits for has not been seen."""
    return bool(suggestion.proposal.after) and not suggestion.has_turn


def describe_turn(suggestion: Suggestion) -> str:
    """What an approver must know; empty: it waits for no other target."""
    after = suggestion.proposal.after
    return (
        f"it starts after {after} of {target_of_suggestion(after)} is promoted, or ends with it"
        if after
        else ""
    )


def follow_order(state: State, event: Event) -> State:
    """Give a suggestion its turn once the one ahead is promoted; end it if that is not."""
    if not isinstance(event, Observed):
        return state
    for made in state.suggestions.pending:
        why = event.ahead.get(made.proposal.after) if is_waiting(made) else None
        if why:
            note = f"{made.id} ends, as what it comes after was not promoted: {why}"
            ended = end_suggestion(state, made, "refused", note)
            state = enter_fitting_phase(ended, event.at, note)
        elif why is not None:
            state = _with_turn(state, replace(made, has_turn=True))
    return state


def _with_turn(state: State, made: Suggestion) -> State:
    suggestions = state.suggestions
    if suggestions.checking is not None and suggestions.checking.id == made.id:
        return replace(state, suggestions=replace(suggestions, checking=made))
    return replace_open(state, [made if other.id == made.id else other for other in suggestions.open])
