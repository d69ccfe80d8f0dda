"""The first effect of a rollout that starts servers."""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.canary_evidence import CanaryEvidence, GainNeeded
from flettner.agent.domain.effects import Launch
from flettner.agent.domain.model import Plan, Proposal, Server, Slo
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.upgrade import flags_in, start_in
from flettner.agent.machine.answer_check import drain_or_examine
from flettner.agent.machine.traffic import recent_traffic
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    enter_phase,
    name_next_server,
    request_effect,
)


def begin_canary(
    rules: Rules,
    state: State,
    rollout_id: str,
    approved: Suggestion,
    plan: Plan,
    at: datetime,
    *,
    gain_needed: GainNeeded,
    note: str,
) -> Transition:
    """Launch green, or first free a slot for it."""
    running, (baseline, baseline_s) = state.fleet.running, recent_traffic(state, at)
    state, name = name_next_server(state)
    old = running[-1]
    to = approved.proposal.to
    green = Server(
        name=name,
        setting={**old.setting, **flags_in(to)},
        like=old.name,
        start={**old.start, **start_in(to)},
        on_cpus=old.on_cpus,
    )
    rollout = Canary(
        id=rollout_id,
        suggestion=approved,
        plan=plan,
        started_at=at,
        phase_since=at,
        baseline=baseline,
        server=name,
        greens=(green,),
        replicas={server.name: server.replicas for server in running},
        evidence=CanaryEvidence(
            calibration=state.traffic.calibration,
            margin=plan.margin,
            gain_needed=gain_needed,
            shares_card=plan.shares_card,
            promised_only=_may_be_slower(approved.proposal, rules.slo),
            baseline_s=baseline_s,
        ),
    )
    state = replace(state, rollout=rollout)
    if approved.preflight.strategy != "surge":
        return drain_or_examine(state, at, note)
    state = enter_phase(state, Phase.LAUNCHING, at, note)
    return request_effect(state, Launch(number=0, server=green, deadline_s=plan.start_s))


def _may_be_slower(proposal: Proposal, slo: Slo) -> bool:
    """Whether only promised latencies count: less hardware is slower, and the SLO says how slow it may be."""
    return proposal.cheaper and slo.ttft is not None and slo.itl is not None
