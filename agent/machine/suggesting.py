"""OBSERVING, CHECKING and PROPOSED: the policies are asked every second, also while suggestions are open."""

from dataclasses import replace
from datetime import datetime
from operator import is_

from flettner.agent.domain.events import Observed
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.upgrade import without_gpus
from flettner.agent.machine.asking import Answers, ask
from flettner.agent.machine.checking import check_suggestion, has_room, refuse_late_preflight, start_by_itself
from flettner.agent.machine.evidence import (
    burns_fast,
    directions_of,
    in_two_windows,
    is_established,
    is_gone,
    knob_directions,
    missing_s,
    no_measurement,
    record_sightings,
    rule_key,
    values_of,
)
from flettner.agent.machine.guard import ProposalRefusal, base_digest
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.open_suggestions import (
    end_each,
    is_from_person,
    replace_open,
    share_a_knob,
)
from flettner.agent.machine.refreshing import is_another_change, is_younger, refresh
from flettner.agent.machine.regimes import follow_load
from flettner.agent.machine.restoring import restart_failing
from flettner.agent.machine.saving import return_servers
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    enter_phase,
    without_effects,
)
from flettner.agent.machine.windows import start_approved
from flettner.rules.table import name_of

NOTED_AT_MOST = 3  # refused and outranked rules in a note, which is one line


def observe(rules: Rules, state: State, event: Observed) -> Transition:
    """Ask the policies: end, refresh or start open suggestions, or check the first admitted proposal.

    Each of these takes a step of its own, so that the journal names it.
    """
    if (back := return_servers(rules, state, event) or restart_failing(rules, state, event.at)) is not None:
        return back
    if (switched := follow_load(rules, state, event)) is not None:
        return switched
    settled = _end_outdated(state, event.at)
    if settled is not state:
        return without_effects(settled)
    if (waited := start_approved(rules, state, event.at)) is not None:
        return waited
    context, reading = rules.context(state, event), event.reading
    if state.paused or reading is None or context is None:
        return keep_alive(state, event.at)
    answers = ask(rules, state, reading, context, event.at)
    if not no_measurement(reading):
        state = _remember(state, answers, reading, event.at)
        revised = _revise(rules, state, answers, reading, event.at)
        if revised is not state:
            return keep_alive(revised, event.at)
        proposed = {directions_of(suggestion) for suggestion in answers.suggestions}
        still = [suggestion for suggestion in state.suggestions.open if directions_of(suggestion) in proposed]
        if (started := start_by_itself(rules, state, still, event.at)) is not None:
            return started
    chosen, held_back = _choose(rules, state, answers, reading, event.at)
    if chosen is not None:
        return check_suggestion(rules, state, chosen, event.at)
    yielding = dict.fromkeys(
        f"{name_of(lost.what.rule)} yields to {name_of(lost.by)}: {lost.why}" for lost in answers.outranked
    )
    return keep_alive(replace(state, note=_noted(state, event.at, held_back, tuple(yielding))), event.at)


def _end_outdated(state: State, at: datetime) -> State:
    """End suggestions that expired or were made for another setting, and a preflight without an answer."""
    base = base_digest(state.fleet.setting) if state.fleet.servers else ""
    ended = end_each(
        state,
        "superseded",
        lambda suggestion: "the setting in force changed" if suggestion.base != base else "",
        at,
    )
    ended = end_each(
        ended,
        "expired",
        lambda suggestion: (
            f"{suggestion.id} expired without a decision"
            if at >= suggestion.expires_at and not suggestion.approved_by
            else ""
        ),
        at,
    )
    if ended.suggestions.checking is not None:
        return refuse_late_preflight(ended, ended.suggestions.checking, at)
    if ended.phase is not Phase.OBSERVING and not ended.suggestions.open:
        return enter_phase(ended, Phase.OBSERVING, at, "the setting in force changed")
    return ended


def _remember(state: State, answers: Answers, reading: Reading, at: datetime) -> State:
    setting = state.fleet.setting
    seen = (key for proposal, _ in answers.admitted for key in proposal.keys(setting))
    sizes = (key for suggestion in answers.suggestions for key in values_of(suggestion.proposal.to))
    hidden = (key for lost in answers.outranked for key in lost.what.keys(setting))
    return record_sightings(state, reading, at, (*seen, *sizes), hidden)


def _revise(rules: Rules, state: State, answers: Answers, reading: Reading, at: datetime) -> State:
    """End the open suggestions that another rule outranks or whose evidence is gone; refresh the others.

    What a person asked for stays, and only its plan and forecast are refreshed.
    """
    setting = state.fleet.setting
    changes = [
        knob_directions(suggestion.to, setting, suggestion.proposal.assumed)
        for suggestion, _ in answers.admitted
    ]

    def outranked(suggestion: Suggestion) -> str:
        if _is_wanted(suggestion) or any(directions_of(suggestion) <= does for does in changes):
            return ""
        for lost in answers.outranked:
            does = knob_directions(lost.what.to, setting, lost.what.proposal.assumed)
            lasting = burns_fast(reading, rules.slo) or in_two_windows(
                state, (rule_key(lost.by),), reading, at
            )
            if directions_of(suggestion) <= does and lasting:
                return f"{suggestion.id} yields to {name_of(lost.by)}: {lost.why}"
        return ""

    def gone(suggestion: Suggestion) -> str:
        if _is_wanted(suggestion) or not is_gone(state, suggestion, reading):
            return ""
        return f"{suggestion.id} is withdrawn: no policy has proposed it for {missing_s(state, suggestion)} s"

    ended = end_each(end_each(state, "superseded", outranked, at), "withdrawn", gone, at)
    if ended is not state or state.suggestions.checking is not None:
        return ended
    proposals = {directions_of(suggestion): suggestion.proposal for suggestion in answers.suggestions}
    shown = state.suggestions.open
    fresh = [
        refresh(rules, state, suggestion, proposals.get(directions_of(suggestion)), at)
        for suggestion in shown
    ]
    return state if all(map(is_, fresh, shown)) else replace_open(state, fresh)


def _is_wanted(suggestion: Suggestion) -> bool:
    """Whether a person asked for it, or approved it: it needs no policy that goes on proposing it."""
    return is_from_person(suggestion) or bool(suggestion.approved_by)


def _choose(
    rules: Rules, state: State, answers: Answers, reading: Reading, at: datetime
) -> tuple[Suggestion | None, str]:
    """The proposal to check next, and why the first one that is not is held back."""
    held_back, ready = "", []
    for asked, admitted in answers.admitted:
        why = ""
        if admitted is None:
            why = f"{name_of(asked.rule)} (advice): {asked.proposal.expects}"
        elif isinstance(admitted, ProposalRefusal):
            why = f"{name_of(asked.rule)} is held back: {admitted.why}"
        elif state.suggestions.checking is not None or not _is_new(rules, state, admitted, reading, at):
            continue
        elif not all(is_established(state, part, reading, at, rules.slo) for part in asked.each):
            why = f"{name_of(asked.rule)} is held back: its cause must last for a second window"
        else:
            ready.append(admitted)
        held_back = held_back or why
        if ready and state.mode != "auto":
            break
    ready.sort(key=lambda made: state.mode == "auto" and made.proposal.klass != "auto")
    return next(iter(ready), None), held_back


def _is_new(rules: Rules, state: State, made: Suggestion, reading: Reading, at: datetime) -> bool:
    """Whether it is another change than every open one, or one of those with a lastingly other value.

    A change with a further cause takes the place of that without it at once; the other way round it does not.
    """
    does = directions_of(made)
    for shown in state.suggestions.open:
        if not share_a_knob(shown, made):
            continue
        shown_does = directions_of(shown)
        if _is_wanted(shown) or does < shown_does:
            return False
        if shown_does < does:
            continue
        if is_younger(shown, at, rules.guard.refresh_s):
            return False
        same = shown_does == does
        if same and not is_another_change(without_gpus(shown.proposal.to), made.proposal.to):
            return False
        if not in_two_windows(state, values_of(made.proposal.to), reading, at):
            return False
    return has_room(state, made)


def _noted(state: State, at: datetime, held_back: str, yielding: tuple[str, ...]) -> str:
    """The new note. Each change is journalled, so the named rule changes once a minute at most.

    While a suggestion is open the note begins with its reason. A rule that is held back no longer leaves it.
    """
    note, first = state.note, next(iter(state.suggestions.open), None)
    lead = f"{first.proposal.why}; " if first else ""
    rest = f"{note}; ".removeprefix(lead).removesuffix("; ") if lead else note
    names_rule = " is held back: " in rest or " (advice): " in rest
    if not held_back:
        return lead.removesuffix("; ") if names_rule and not at.second else note
    if rest.startswith(held_back):
        return note
    if names_rule and at.second and rest.partition(" ")[0] != held_back.partition(" ")[0]:
        return note
    return lead + "; ".join((held_back, *yielding[: NOTED_AT_MOST - 1]))
