"""PROPOSED and COOLDOWN: an operator's requests and decisions, and what ends without one."""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.events import (
    AppliedChangeCompared,
    Approved,
    ChangeAsked,
    Denied,
    Observed,
    Paused,
    PredictionChecked,
    Reconfigured,
    Resumed,
    ServerLost,
)
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.prediction_check import KEPT, drop_law
from flettner.agent.domain.state import Phase, RecentTraffic, State
from flettner.agent.domain.upgrade import MODEL
from flettner.agent.machine.checking import check_suggestion
from flettner.agent.machine.guard import PERSON, ProposalRefusal
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.open_suggestions import (
    barred_approver,
    end_all,
    end_check,
    end_suggestion,
    enter_fitting_phase,
)
from flettner.agent.machine.order import is_waiting
from flettner.agent.machine.regimes import follow_load
from flettner.agent.machine.restoring import missing_server, restart_failing, restore
from flettner.agent.machine.saving import in_force, put_back, return_servers
from flettner.agent.machine.starting import start_rollout
from flettner.agent.machine.transitions import (
    IDLE,
    Rules,
    Transition,
    choose_blue,
    enter_phase,
    remember_outcome,
    without_effects,
)
from flettner.agent.machine.windows import keep_approval
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.values import Setting


def request_change(rules: Rules, state: State, event: ChangeAsked) -> Transition:
    """Turn an operator's request into a suggestion. It takes the place of one that is being checked."""
    if why := _why_not_comparable(rules, state, event):
        return without_effects(replace(state, note=why))
    asked = Proposal(
        rule=PERSON,
        to=event.to,
        why=event.reason or f"requested by {event.actor}",
        expects=_describe_knobs(event.to),
        risks="not predicted: the canary judges it like any change",
        source=event.actor,
        klass="gated",
        accepts_other_answers=event.accepts_other_answers,
        after=event.after,
    )
    admitted = rules.guard.admit_asked(state, asked, actor=event.actor, at=event.at, slo=rules.slo)
    if isinstance(admitted, ProposalRefusal):
        return without_effects(replace(state, note=admitted.why))
    free = end_check(state, event.at, f"{event.actor} requested a change")
    return check_suggestion(rules, free, admitted, event.at)


def _describe_knobs(to: Setting) -> str:
    """What the catalogue says of the knobs; a gain is not predicted."""
    facts = [KNOBS[knob] for knob in to if knob in KNOBS]
    raised = [f" (raising it: {fact.effects})" if str(fact.effects) else "" for fact in facts]
    meanings = [
        f"{fact.name}: {fact.meaning.rstrip('.')}{effect}" for fact, effect in zip(facts, raised, strict=True)
    ]
    return "; ".join([*meanings, "how much it gains is not predicted"])


def _why_not_comparable(rules: Rules, state: State, event: ChangeAsked) -> str:
    """Why another model cannot be judged by its answers, with what to do; empty if it need not be, or can."""
    if MODEL not in event.to or event.accepts_other_answers or rules.exam.command:
        return ""
    return (
        f"{MODEL}={event.to[MODEL]} was requested: the answers of another model cannot be compared with "
        f"those of {state.fleet.setting.get(MODEL)}; give a check command in [targets.quality], or accept "
        "other answers (--accept-different-answers)"
    )


def approve(rules: Rules, state: State, event: Approved) -> Transition:
    """Start exactly what was shown: same digest, still open, not expired, and never in advise mode.

    Before its turn, and outside of the windows, it waits or is refused. A change that is to be committed is
    not started. With `approval = "other"` an operator cannot approve their own proposal.
    """
    suggestion = state.suggestions.find_pending(event.suggestion)
    if (
        suggestion is None
        or state.mode == "advise"
        or state.paused
        or (suggestion.digest, suggestion.status) != (event.digest, "open")
        or event.at >= suggestion.expires_at
        or event.actor == barred_approver(state, suggestion)
        or suggestion.held
    ):
        return without_effects(state)
    if is_waiting(suggestion) or not rules.windows.is_open(event.at):
        return without_effects(keep_approval(rules, state, suggestion, event))
    return start_rollout(rules, state, suggestion, event.at, event.actor)


def deny(_: Rules, state: State, event: Denied) -> Transition:
    suggestion = state.suggestions.find_pending(event.suggestion)
    if suggestion is None:
        return without_effects(state)
    state = remember_outcome(state, suggestion, event.at, "denied", f"by {event.actor}", started=False)
    state = end_suggestion(state, suggestion, "denied", "", by=event.actor)
    return without_effects(enter_fitting_phase(state, event.at, f"{event.actor} denied {suggestion.id}"))


def cool_down(rules: Rules, state: State, event: Observed) -> Transition:
    if (back := return_servers(rules, state, event) or restart_failing(rules, state, event.at)) is not None:
        return back
    if (switched := follow_load(rules, state, event)) is not None:
        return switched
    if state.until is None or event.at >= state.until:
        return without_effects(enter_phase(state, Phase.OBSERVING, event.at, ""))
    return keep_alive(state, event.at)


def pause(rules: Rules, state: State, event: Paused) -> Transition:
    """Suggest and start nothing new; a running rollout continues. An admin's pause is ended by an admin.

    In maintenance a server that exits is not started again either. It cannot begin during a rollout, which
    needs its servers.
    """
    if event.maintenance and state.phase not in IDLE:
        return without_effects(state)
    admin_pause = state.admin_pause or event.by_admin
    maintenance = state.maintenance if state.admin_pause and not event.by_admin else event.maintenance
    kind, until = "in maintenance" if maintenance else "paused", ", until an admin resumes"
    note = f"{kind}, by {event.actor}{until if admin_pause else ''}"
    ended = state.maintenance and not maintenance
    state = replace(state, paused=True, maintenance=maintenance, admin_pause=admin_pause, note=note)
    return _end_maintenance(rules, state, event.at) if ended else without_effects(state)


def resume(rules: Rules, state: State, event: Resumed) -> Transition:
    """After maintenance a server of flettner that does not run starts again."""
    if state.admin_pause and not event.by_admin:
        return without_effects(state)
    ended = state.maintenance
    note = f"resumed by {event.actor}"
    state = replace(state, paused=False, maintenance=False, admin_pause=False, note=note)
    return _end_maintenance(rules, state, event.at) if ended else without_effects(state)


def _end_maintenance(rules: Rules, state: State, at: datetime) -> Transition:
    lost = missing_server(state)
    if lost is None or not lost.ours or state.mode == "advise":
        return without_effects(state)
    return restore(rules, state, at, f"{lost.name} does not run at the end of the maintenance")


def reconfigure(_: Rules, state: State, event: Reconfigured) -> Transition:
    """End what was suggested under the earlier rules: an approval of it would carry out those."""
    state = replace(state, mode=event.mode, approval=event.approval)
    if event.new_slo:
        state = replace(state, traffic=RecentTraffic(), budget=Budget())
    if not state.suggestions.pending:
        return without_effects(state)
    why = "the config was reloaded; what is still useful is suggested again"
    return without_effects(enter_fitting_phase(end_all(state, why), event.at, why))


def record_prediction(_: Rules, state: State, event: PredictionChecked) -> Transition:
    """Keep what became of a prediction, and drop the law if too many missed."""
    checks = (*state.predictions, event.check)[-KEPT:]
    return without_effects(replace(state, predictions=checks, law_drop=drop_law(checks, state.law_drop)))


def record_comparison(_: Rules, state: State, event: AppliedChangeCompared) -> Transition:
    return without_effects(replace(state, note=event.why))


def on_server_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """Replace an exited server that flettner started; an adopted one is left to its owner."""
    if not state.fleet.has(event.server):
        return without_effects(state)
    why = f"{event.server}: {event.why}"
    lost = missing_server(state)
    if state.maintenance:
        why = f"{why}; in maintenance it is not started again"
    elif event.gone and in_force(state) and state.mode != "advise":
        return put_back(rules, state, event.at, why)
    if not event.gone or lost is None or not lost.ours or state.mode == "advise" or state.maintenance:
        return without_effects(choose_blue(replace(state, note=why)))
    return restore(rules, state, event.at, why)
