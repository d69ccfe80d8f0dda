"""Builds the journal entry of a transition: its action, actor, reason and evidence. Pure."""

from typing import Any

from flettner.agent.audit.records import DAEMON, Actor, JournalEntry
from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Effect, SetKnobs
from flettner.agent.domain.model import Evidence
from flettner.agent.domain.prediction_check import describe_check
from flettner.agent.domain.request_counts import RequestCounts, quantile
from flettner.agent.domain.rollout import Canary, Rollout, Saving
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.judge.canary.report import report_evidence
from flettner.agent.machine.failing import describe_failures
from flettner.agent.machine.failover import describe_failover
from flettner.agent.machine.guard import PERSON
from flettner.agent.machine.hot_trial import is_hot
from flettner.agent.machine.saving import in_force
from flettner.vllm_facts.values import describe_changes

ENTERED = {
    Phase.CHECKING: "suggestion.checked",
    Phase.PROPOSED: "suggestion.made",
    Phase.DRAINING: "server.draining",
    Phase.LAUNCHING: "server.launching",
    Phase.REPLACING: "rollout.replacing",
    Phase.WARMING: "server.launched",
    Phase.CANARY: "rollout.canary_started",
    Phase.TRIAL: "rollout.trial_started",
    Phase.SAVING: "rollout.trial_started",
    Phase.PROMOTING: "rollout.promoting",
    Phase.ROLLING_BACK: "rollout.rolling_back",
    Phase.COOLDOWN: "rollout.rolled_back",
    Phase.RESTORING: "server.restoring",
    Phase.HALTED: "target.halted",
}
WAITING = {Phase.CHECKING, Phase.PROPOSED}
HAPPENED: dict[type[e.Event], str] = {
    e.AgentStarted: "daemon.started",
    e.Observed: "target.observed",
    e.Preflighted: "suggestion.checked",
    e.Launched: "server.launched",
    e.Warmed: "server.warmed",
    e.Examined: "answers.examined",
    e.Routed: "traffic.routed",
    e.Drained: "server.drained",
    e.Stopped: "server.stopped",
    e.Retired: "server.retired",
    e.KnobsSet: "knobs.set",
    e.EffectFailed: "effect.failed",
    e.ServerLost: "server.lost",
    e.AdaptersRead: "adapters.read",
    e.ChangeAsked: "change.asked",
    e.Approved: "approval.refused",  # outside of the windows
    e.Denied: "suggestion.denied",
    e.Aborted: "rollout.aborted",
    e.Paused: "target.paused",
    e.Resumed: "target.resumed",
    e.PredictionChecked: "prediction.checked",
    e.AppliedChangeCompared: "change.compared",
    e.Reconfigured: "target.reconfigured",
}


def build_entry(before: State, after: State, event: e.Event, effects: tuple[Effect, ...]) -> JournalEntry:
    """Build the entry of one transition; recovery continues from its `state`."""
    rollout = after.rollout
    running = _is_running(before) or _is_running(after)
    changed = changed_suggestion(before, after) or (rollout.suggestion if rollout and running else None)
    return JournalEntry(
        at=event.at,
        actor=actor_of(before, after, event),
        action=action_of(before, after, event),
        target=after.target,
        op_id=rollout.id if rollout and running else "",
        why=_failure_why(before, after) or _why(before, event, after),
        evidence=evidence_of(changed, rollout if running else None),
        before={"phase": before.phase.value, **({"setting": dict(changed.before)} if changed else {})},
        after=_after(after, changed, rollout if running else None) | _request_fields(event),
        risk=changed.proposal.risks if changed else "",
        result=rollout.outcome if rollout and running else "",
        error=_error(event, after),
        epoch=after.epoch,
        effects=effects,
        state=after,
    )


def _is_running(state: State) -> bool:
    rollout = state.rollout
    if isinstance(rollout, Saving):
        return in_force(state)
    return rollout.newest is not None if isinstance(rollout, Canary) else is_hot(state)


def actor_of(before: State, after: State, event: e.Event) -> Actor:
    match event:
        case (
            e.Approved(actor=actor)
            | e.Denied(actor=actor)
            | e.Aborted(actor=actor)
            | e.Paused(actor=actor)
            | e.Resumed(actor=actor)
            | e.ChangeAsked(actor=actor)
        ):
            return Actor(kind="person", id=actor)
        case e.Reconfigured(actor=actor) if actor:
            return Actor(kind="person", id=actor)
        case e.Observed() | e.Preflighted():
            return _own_actor(before, after)
        case _:
            return DAEMON


def _own_actor(before: State, after: State) -> Actor:
    """The policy, the person or the mode behind a change of a suggestion; else the daemon."""
    changed = changed_suggestion(before, after)
    if changed is None:
        return DAEMON
    if starts_rollout(before, after):
        if is_switch(after):
            return DAEMON
        return Actor(kind="person" if changed.approved_by else "auto", id=changed.decided_by)
    return Actor(kind="person" if changed.proposal.rule == PERSON else "policy", id=changed.policy)


def changed_suggestion(before: State, after: State) -> Suggestion | None:
    """The suggestion that the step is about: decided, made or refreshed, else the first one that ended."""
    before_by_id = {suggestion.id: suggestion for suggestion in _carried_out_or_pending(before)}
    listed = (*_carried_out_or_pending(after), *after.suggestions.ended)
    return next((suggestion for suggestion in listed if suggestion != before_by_id.get(suggestion.id)), None)


def _carried_out_or_pending(state: State) -> tuple[Suggestion, ...]:
    carried_out = (state.rollout.suggestion,) if state.rollout is not None else ()
    return (*carried_out, *state.suggestions.pending)


def action_of(before: State, after: State, event: e.Event) -> str:
    if isinstance(event, e.AgentStarted):
        return "daemon.started" if after.epoch != before.epoch else "target.looked_at_again"
    if isinstance(event, e.Reconfigured):
        return HAPPENED[type(event)]
    if action := _approval_action(before, after):
        return action
    if after.phase in WAITING and (action := _suggestion_action(before, after, event)):
        return action
    if after.phase is before.phase:
        if _step_of(after) > _step_of(before):
            return "rollout.advanced"
        if isinstance(event, e.Observed) and (action := _failure_action(before, after)):
            return action
        if isinstance(event, e.ServerLost) and event.server == before.effects.ending:
            return "server.ended"
        return HAPPENED[type(event)]
    if after.phase is Phase.OBSERVING:
        return _settled_action(before, after)
    return _entered_action(before, after)


def _entered_action(before: State, after: State) -> str:
    ends = bool(before.fleet.spared) and not after.fleet.spared
    return "saving.ended" if ends else ENTERED[after.phase]


def _step_of(state: State) -> int:
    return state.rollout.step if isinstance(state.rollout, Canary) else 0


def _failure_action(before: State, after: State) -> str:
    """What happened to servers that fail and to their traffic; empty: nothing."""
    if (after.split.planned is None) is not (before.split.planned is None):
        return "traffic.failed_over" if after.split.planned is not None else "traffic.failover_ended"
    if after.failing.keys() - before.failing.keys():
        return "server.failing"
    return "server.recovered" if before.failing.keys() - after.failing.keys() else ""


def _failure_why(before: State, after: State) -> str:
    """Why the step is written, if it is for failing servers alone."""
    if after.phase is not before.phase:
        return ""
    action = _failure_action(before, after)
    if action in {"traffic.failed_over", "server.failing"}:
        return describe_failover(after) or describe_failures(after)
    back = ", ".join(sorted(before.failing.keys() - after.failing.keys()))
    return f"{back} does not fail any more" if action == "server.recovered" else ""


def _suggestion_action(before: State, after: State, event: e.Event) -> str:
    """What happened to a suggestion while further ones may be open; empty: nothing."""
    changed = changed_suggestion(before, after)
    if changed is None:
        return ""
    if changed.status == "checking":
        return "suggestion.checked"
    if changed.status == "open":
        if isinstance(event, e.Approved):
            return "approval.kept"  # until the windows open
        open_before = {suggestion.id for suggestion in before.suggestions.open}
        return "suggestion.refreshed" if changed.id in open_before else "suggestion.made"
    return f"suggestion.{changed.status}"


def starts_rollout(before: State, after: State) -> bool:
    return after.rollout is not None and (before.rollout is None or before.rollout.id != after.rollout.id)


def is_switch(state: State) -> bool:
    """Whether the latest rollout is a change under an approval to switch between settings."""
    return state.rollout is not None and state.regimes is not None and state.rollout.id == state.regimes.trial


def _approval_action(before: State, after: State) -> str:
    """What begins with an approval or under an earlier one, or ends with it; empty: nothing."""
    was = before.switching is not None and not before.switching.ending
    if was and (after.switching is None or after.switching.ending):
        return "regimes.ended"
    if not starts_rollout(before, after):
        return ""
    return "regimes.switched" if is_switch(after) else "suggestion.approved"


def _settled_action(before: State, after: State) -> str:
    match before.phase:
        case Phase.PROMOTING | Phase.TRIAL | Phase.SAVING:
            return "rollout.promoted"
        case Phase.RESTORING:
            return "server.restored"
        case Phase.CHECKING | Phase.PROPOSED if changed := changed_suggestion(before, after):
            return f"suggestion.{changed.status}"
    return "target.observing"


def evidence_of(suggestion: Suggestion | None, rollout: Rollout | None) -> tuple[Evidence, ...]:
    """The evidence of the suggestion, and the results of both sides so far."""
    shown = suggestion.proposal.evidence if suggestion else ()
    if not isinstance(rollout, Canary) or rollout.step_since is None:
        return shown
    judged = (
        Evidence(
            metric=f"{account.stream}_{name}", value=value, unit="e-value", window_s=rollout.evidence.valid_s
        )
        for account in report_evidence(rollout.evidence)
        for name, value in (("worse", account.worse), ("not_worse", account.not_worse))
    )
    return (
        *shown,
        *_count_evidence("green", rollout.green_counts),
        *_count_evidence("blue", rollout.blue_counts),
        *judged,
    )


def _count_evidence(side: str, counts: RequestCounts) -> tuple[Evidence, ...]:
    """Summarise request counts for display."""
    p95 = quantile(counts.ttft, 0.95)
    numbers = {"requests": (float(counts.total), ""), "errors": (float(counts.errors), "")}
    if counts.stalled:
        numbers["stalled"] = (float(counts.stalled), "")
    if counts.refused:
        numbers["refused"] = (float(counts.refused), "")
    if p95 is not None:
        numbers["ttft_p95"] = (p95, "s")
    return tuple(
        Evidence(metric=f"{side}_{name}", value=value, unit=unit, window_s=0.0)
        for name, (value, unit) in numbers.items()
    )


def _after(after: State, changed: Suggestion | None, rollout: Rollout | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"phase": after.phase.value}
    if changed is not None:
        shown |= {"suggestion": changed.id, "digest": changed.digest, "setting": dict(changed.proposal.to)}
    if rollout is not None:
        shown |= {
            "exposed": rollout.exposed.asked,
            "bad_exposed": rollout.bad_exposed,
            "undrained": sum(rollout.undrained.values()) if isinstance(rollout, Canary) else 0,
            "lost": rollout.lost if isinstance(rollout, Canary) else 0,
        }
    differs = {server.name: list(server.differs) for server in after.greens if server.differs}
    if differs:
        shown["differs"] = differs
    if after.split.route is not None:
        shown["weights"] = dict(after.split.route.weights)
    return shown


def _request_fields(event: e.Event) -> dict[str, Any]:
    comment = {"comment": event.comment} if isinstance(event, e.Approved) and event.comment else {}
    return comment | (
        {"request": event.request} if isinstance(event, e.PersonDecision) and event.request else {}
    )


def _why(before: State, event: e.Event, after: State) -> str:
    """The note of the state, and the operator's reason, which the note does not repeat in later entries."""
    if isinstance(event, e.ServerLost) and event.server == before.effects.ending:
        return event.why
    if isinstance(event, e.Reconfigured):
        return "the rules of the reloaded config are in force"
    if isinstance(event, e.PredictionChecked):
        why, drop = describe_check(event.check), after.law_drop
        return f"{why}; law dropped: {drop.why}" if drop and drop.at == event.check.at else why
    if isinstance(event, e.KnobsSet) and after.phase is before.phase and after.knobs is not None:
        return _describe_knobs(after.knobs, after.hot_change.suggestion)
    reason = event.reason if isinstance(event, e.Denied | e.Aborted) else ""
    return f"{after.note}: {reason}" if reason else after.note


def _describe_knobs(change: SetKnobs, suggestion: Suggestion) -> str:
    """The values in force, of the knobs that are tried."""
    values = {knob: value for knob, value in change.values.items() if knob in suggestion.proposal.to}
    lease = "" if change.lease_s is None else f", with a lease of {change.lease_s:g} s"
    return f"{describe_changes(values) or 'the values of the start'} in force{lease}"


def _error(event: e.Event, after: State) -> str:
    match event:
        case e.EffectFailed(why=why, log=log) | e.ServerLost(why=why, log=log):
            return "\n".join((why, *log))
        case _:
            pass
    if after.phase is Phase.ROLLING_BACK and after.rollout is not None:
        return after.rollout.why
    return ""
