"""Outside of the windows nothing starts: an approval waits or is refused, a rollout ends as configured.

An approval waits for the turn of its target, too: see flettner.agent.machine.order.
"""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.events import Approved
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.failing import blue_fails_more
from flettner.agent.machine.hot_trial import take_back
from flettner.agent.machine.open_suggestions import replace_open
from flettner.agent.machine.order import describe_turn, is_waiting
from flettner.agent.machine.rolling_back import roll_back
from flettner.agent.machine.saving import put_back
from flettner.agent.machine.starting import start_rollout
from flettner.agent.machine.transitions import Rules, Transition

LEFT_AT_EDGE = (Phase.DRAINING, Phase.LAUNCHING, Phase.WARMING, Phase.CANARY, Phase.TRIAL, Phase.SAVING)
"""Later phases are past the canary: what is left of them is finished."""


def keep_approval(rules: Rules, state: State, suggestion: Suggestion, event: Approved) -> State:
    """Keep the approval of exactly this version until its turn, in a window; or say when to approve."""
    if rules.windows.refuses(event.at):
        closed = rules.windows.describe_closed(event.at)
        return replace(state, note=f"{suggestion.id} was not approved: {closed}; approve it then")
    turn = describe_turn(suggestion) if is_waiting(suggestion) else ""
    closed = "" if rules.windows.is_open(event.at) else rules.windows.describe_closed(event.at)
    waiting = replace(suggestion, approved_by=event.actor)
    others = [waiting if other.id == suggestion.id else other for other in state.suggestions.open]
    return replace(
        replace_open(state, others),
        note=f"{suggestion.id} approved by {event.actor}: {'; '.join(filter(None, [turn, closed]))}",
    )


def start_approved(rules: Rules, state: State, at: datetime) -> Transition | None:
    """Start the first approved suggestion whose turn it is, once the windows are open."""
    waiting = [made for made in state.suggestions.open if made.approved_by and not is_waiting(made)]
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
    if state.phase is Phase.SAVING:
        return put_back(rules, state, at, why)
    return None if blue_fails_more(state) else roll_back(state, at, why, result="undecided")
