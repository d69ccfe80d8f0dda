"""The first effect of a rollout that starts servers."""

from dataclasses import replace

from flettner.agent.domain.canary_evidence import CanaryEvidence
from flettner.agent.domain.effects import Launch
from flettner.agent.domain.model import Proposal, Server, Slo
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.upgrade import flags_in, start_in
from flettner.agent.machine import failing
from flettner.agent.machine.answer_check import drain_or_examine
from flettner.agent.machine.traffic import recent_traffic
from flettner.agent.machine.transitions import (
    RolloutStart,
    Rules,
    Transition,
    enter_phase,
    name_next_server,
    request_effect,
)


def begin_canary(rules: Rules, state: State, start: RolloutStart) -> Transition:
    """Launch green, or first free a slot for it."""
    running, (baseline, baseline_s) = state.fleet.running, recent_traffic(state, start.at)
    state, name = name_next_server(state)
    strategy = start.suggestion.preflight.strategy
    old = running[-1] if strategy == "surge" else _choose_old_server(state)
    to = start.suggestion.proposal.to
    green = Server(
        name=name,
        setting={**old.setting, **flags_in(to)},
        like=old.name,
        start={**old.start, **start_in(to)},
        on_cpus=old.on_cpus,
    )
    rollout = Canary(
        id=start.id,
        suggestion=start.suggestion,
        plan=start.plan,
        started_at=start.at,
        phase_since=start.at,
        baseline=baseline,
        server=name,
        greens=(green,),
        replicas={server.name: server.replicas for server in running},
        evidence=CanaryEvidence(
            calibration=state.traffic.calibration,
            margin=start.plan.margin,
            gain_needed=start.gain_needed,
            shares_card=start.plan.shares_card,
            promised_only=_may_be_slower(start.suggestion.proposal, rules.slo),
            baseline_s=baseline_s,
        ),
    )
    state = replace(state, rollout=rollout)
    if strategy != "surge":
        return drain_or_examine(state, start.at, start.note)
    state = enter_phase(state, Phase.LAUNCHING, start.at, start.note)
    return request_effect(state, Launch(number=0, server=green, deadline_s=start.plan.start_s))


def _choose_old_server(state: State) -> Server:
    """The old server that frees its slot: one that answers and errs rather than one that serves."""
    running = state.fleet.running
    return next((server for server in reversed(running) if failing.errs(state, server)), running[-1])


def _may_be_slower(proposal: Proposal, slo: Slo) -> bool:
    """Whether only promised latencies count: less hardware is slower, and the SLO says how slow it may be."""
    return proposal.cheaper and slo.ttft is not None and slo.itl is not None
