"""Outside of the windows nothing starts: an approval waits or is refused, a rollout ends as configured."""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.events import Approved
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.failing import blue_fails_more
from flettner.agent.machine.hot_trial import take_back
from flettner.agent.machine.open_suggestions import replace_open
from flettner.agent.machine.rolling_back import roll_back
from flettner.agent.machine.starting import start_rollout
from flettner.agent.machine.transitions import Rules, Transition

LEFT_AT_EDGE = (Phase.DRAINING, Phase.LAUNCHING, Phase.WARMING, Phase.CANARY, Phase.TRIAL)
"""Later phases are past the canary: what is left of them is finished."""


def keep_approval(rules: Rules, state: State, suggestion: Suggestion, event: Approved) -> State:
    """Keep the approval of exactly this version until the windows open, or say when to approve it."""
    closed = rules.windows.describe_closed(event.at)
    if rules.windows.refuses(event.at):
        return replace(state, note=f"{suggestion.id} was not approved: {closed}; approve it then")
    waiting = replace(suggestion, approved_by=event.actor)
    others = [waiting if other.id == suggestion.id else other for other in state.suggestions.open]
    return replace(
        replace_open(state, others),
        note=f"{suggestion.id} approved by {event.actor}; it starts when the windows open: {closed}",
    )


def start_approved(rules: Rules, state: State, at: datetime) -> Transition | None:
    """Start the first approved suggestion that waited for the windows, once they are open."""
    waiting = [suggestion for suggestion in state.suggestions.open if suggestion.approved_by]
    if not waiting or state.paused or state.mode == "advise" or not rules.windows.is_open(at):
        return None
    return start_rollout(rules, state, waiting[0], at, waiting[0].approved_by)


def leave_at_edge(rules: Rules, state: State, at: datetime) -> Transition | None:
    """Roll back what runs when a window closes that says so; not to a blue that fails more."""
    if state.phase not in LEFT_AT_EDGE or not rules.windows.rolls_back(at):
        return None
    why = "the window closed before the rollout ended"
    if state.phase is Phase.TRIAL:
        return take_back(state, at, why, result="undecided")
    return None if blue_fails_more(state) else roll_back(state, at, why, result="undecided")
