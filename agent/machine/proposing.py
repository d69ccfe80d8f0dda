"""OBSERVING and PROPOSED: from a reading to a suggestion, and from an operator's decision to its effect."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from agent.domain.events import Approved, ChangeAsked, Denied, Observed, Paused, Resumed, ServerLost
from agent.domain.model import Proposal
from agent.domain.state import Phase, State, Suggestion
from agent.machine.checking import check_suggestion
from agent.machine.guard import PERSON, ProposalRefusal, base_digest
from agent.machine.lease import keep_alive
from agent.machine.restoring import missing_server, restore
from agent.machine.starting import start_rollout
from agent.machine.transitions import (
    Moved,
    Rules,
    choose_blue,
    close_suggestion,
    enter_phase,
    is_in_fleet,
    remember_outcome,
    without_effects,
)
from lint.precedence import ranked
from vllm_facts.values import ChangeClass, Knob, Value

NOTED_AT_MOST = 3  # refused and outranked rules in a note, which is one line


@dataclass(frozen=True, slots=True)
class _Asked:
    """A proposal and the policy that made it."""

    policy: str
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


def observe(rules: Rules, state: State, event: Observed) -> Moved:
    """Rank the proposals of all policies; the first that the guard admits becomes the suggestion."""
    context, reading = rules.context(state), event.reading
    if state.paused or reading is None or context is None:
        return keep_alive(state, event.at)
    asked = [
        _Asked(name, proposal)
        for name, policy in rules.policies
        for proposal in policy.propose(reading, context)
    ]
    ordered = ranked(asked)
    held_back = ""
    for one in ordered.kept:
        if one.klass == "note" or not one.to:
            held_back = held_back or f"{one.rule} (advice): {one.proposal.expects}"
            continue
        found = rules.guard.admit(
            state, one.proposal, policy=one.policy, at=event.at, reading=reading, slo=rules.slo
        )
        if isinstance(found, Suggestion):
            return check_suggestion(rules, state, found, event.at)
        held_back = held_back or f"{one.rule} is held back: {found.why}"
    yielding = dict.fromkeys(
        f"{lost.what.rule} yields to {lost.by}: {lost.why}" for lost in ordered.outranked
    )
    note = _noted(state.note, event.at, held_back, tuple(yielding))
    return keep_alive(replace(state, note=note), event.at)


def _noted(note: str, at: datetime, held_back: str, yielding: tuple[str, ...]) -> str:
    """The new note. Each change is journalled, so the named rule changes once a minute at most."""
    if not held_back or note.startswith(held_back):
        return note
    names_rule = " is held back: " in note or " (advice): " in note
    if names_rule and at.second and note.partition(" ")[0] != held_back.partition(" ")[0]:
        return note
    return "; ".join((held_back, *yielding[: NOTED_AT_MOST - 1]))


def request_change(rules: Rules, state: State, event: ChangeAsked) -> Moved:
    """Turn an operator's request into a suggestion, which supersedes an open one."""
    asked = Proposal(
        rule=PERSON,
        to=event.to,
        why=event.reason or f"requested by {event.actor}",
        expects="not known to trimtab",
        risks="not known to trimtab; the canary judges it like any change",
        source=event.actor,
        klass="gated",
    )
    found = rules.guard.admit_asked(state, asked, actor=event.actor, at=event.at, slo=rules.slo)
    if isinstance(found, ProposalRefusal):
        return without_effects(replace(state, note=found.why))
    return check_suggestion(
        rules, replace(state, suggestion=close_suggestion(state.suggestion, "superseded")), found, event.at
    )


def await_decision(_: Rules, state: State, event: Observed) -> Moved:
    """Expire the suggestion, or withdraw it once the setting it was made for has changed."""
    suggestion = state.suggestion
    if suggestion is None or state.blue is None or suggestion.base != base_digest(state.blue.setting):
        gone = replace(state, suggestion=close_suggestion(suggestion, "superseded"))
        return without_effects(enter_phase(gone, Phase.OBSERVING, event.at, "the setting in force changed"))
    if event.at >= suggestion.expires_at:
        gone = replace(state, suggestion=close_suggestion(suggestion, "expired"))
        return without_effects(
            enter_phase(gone, Phase.OBSERVING, event.at, f"{suggestion.id} expired without a decision")
        )
    return keep_alive(state, event.at)


def approve(_: Rules, state: State, event: Approved) -> Moved:
    """Start exactly what was shown: same digest, still open, not expired, and never in advise mode."""
    suggestion = state.suggestion
    if (
        suggestion is None
        or state.mode == "advise"
        or state.paused
        or (suggestion.id, suggestion.digest, suggestion.status) != (event.suggestion, event.digest, "open")
        or event.at >= suggestion.expires_at
    ):
        return without_effects(state)
    return start_rollout(state, event.at, event.actor)


def deny(_: Rules, state: State, event: Denied) -> Moved:
    suggestion = state.suggestion
    if suggestion is None or (suggestion.id, suggestion.status) != (event.suggestion, "open"):
        return without_effects(state)
    denied = replace(suggestion, status="denied", decided_by=event.actor)
    state = remember_outcome(replace(state, suggestion=denied), event.at, "denied", event.reason)
    return without_effects(
        enter_phase(state, Phase.OBSERVING, event.at, f"{event.actor} denied {suggestion.id}: {event.reason}")
    )


def cool_down(_: Rules, state: State, event: Observed) -> Moved:
    if state.until is None or event.at >= state.until:
        return without_effects(enter_phase(state, Phase.OBSERVING, event.at, ""))
    return keep_alive(state, event.at)


def pause(_: Rules, state: State, event: Paused) -> Moved:
    """Suggest and start nothing new; a running rollout continues."""
    return without_effects(replace(state, paused=True, note=f"paused by {event.actor}"))


def resume(_: Rules, state: State, event: Resumed) -> Moved:
    return without_effects(replace(state, paused=False, note=f"resumed by {event.actor}"))


def on_server_lost(rules: Rules, state: State, event: ServerLost) -> Moved:
    """Replace an exited server that trimtab started; an adopted one is left to its owner."""
    if not is_in_fleet(state, event):
        return without_effects(state)
    why = f"{event.server}: {event.why}"
    lost = missing_server(state)
    if not event.gone or lost is None or not lost.ours or state.mode == "advise":
        return without_effects(choose_blue(replace(state, note=why)))
    return restore(rules, state, event.at, why)
