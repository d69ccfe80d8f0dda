"""From an approval to the first effect of a rollout."""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.canary_evidence import CanaryEvidence, GainNeeded
from flettner.agent.domain.effects import Launch
from flettner.agent.domain.model import Plan, Proposal, Server
from flettner.agent.domain.state import Phase, Rollout, State
from flettner.agent.machine.answer_check import drain_or_examine
from flettner.agent.machine.guard import PERSON, base_digest
from flettner.agent.machine.hot_trial import begin_trial
from flettner.agent.machine.open_suggestions import end_all, end_suggestion, enter_fitting_phase
from flettner.agent.machine.traffic import recent_traffic
from flettner.agent.machine.transitions import (
    Transition,
    enter_phase,
    name_next_server,
    request_effect,
    without_effects,
)


def start_rollout(state: State, at: datetime, by: str) -> Transition:
    """Carry out `state.suggestion`: launch green, or first free a slot for it. The other open ones end.

    A change of running servers launches none.
    """
    suggestion, standing = state.suggestion, state.fleet.running
    if suggestion is None or suggestion.plan is None or not standing:
        return without_effects(state)
    if any(base_digest(server.setting) != suggestion.base for server in standing):
        why = f"{suggestion.id} was made for a setting that is no longer in force"
        return without_effects(enter_fitting_phase(end_all(state, "superseded", why), at, why))
    for other in state.also_open:
        why = f"{suggestion.id} was approved; what is still useful is suggested again"
        state = end_suggestion(state, other.id, "superseded", why)
    old, preflight, name = standing[-1], suggestion.preflight, ""
    baseline, baseline_s = recent_traffic(state, at)
    if preflight.strategy != "hot":
        state, name = name_next_server(state)
    green = Server(name=name, setting={**old.setting, **suggestion.proposal.to}, like=old.name)
    rollout = Rollout(
        id=f"{state.target}-{suggestion.id.removeprefix(f'{state.target}-s')}",
        suggestion=suggestion.id,
        server=name,
        plan=suggestion.plan,
        strategy=preflight.strategy,
        outage_s=preflight.outage_s,
        old=tuple(server.name for server in standing),
        replicas={server.name: server.replicas for server in standing},
        started_at=at,
        phase_since=at,
        evidence=CanaryEvidence(
            calibration=state.traffic.calibration,
            margin=suggestion.plan.margin,
            gain_needed=gain_needed(suggestion.proposal, suggestion.plan),
            baseline_s=baseline_s,
        ),
        baseline=baseline,
    )
    approved = replace(suggestion, status="approved", decided_by=by)
    state = replace(state, rollout=rollout, suggestion=approved, sightings={})
    if preflight.strategy == "hot":
        return begin_trial(state, at, f"{suggestion.id} approved by {by}")
    state = replace(state, green=green)
    if preflight.strategy != "surge":
        return drain_or_examine(state, at, f"{suggestion.id} approved by {by}")
    state = enter_phase(state, Phase.LAUNCHING, at, f"{suggestion.id} approved by {by}")
    return request_effect(state, Launch(number=0, server=green, deadline_s=rollout.plan.start_s))


def gain_needed(proposal: Proposal, plan: Plan) -> GainNeeded:
    """Whether the change must be measurably better; a mitigation only beside a blue that misses its SLO.

    Where blue meets its SLO a mitigation prevents what has not happened yet, so not worse is enough.
    """
    if proposal.rule == PERSON or not plan.gain_needed:
        return "never"
    return "if_missed" if proposal.mitigation else "always"
