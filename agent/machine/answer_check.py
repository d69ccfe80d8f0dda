"""WARMING, before the canary: compare green's answers with blue's. In a swap blue answers before it stops."""

from dataclasses import replace
from datetime import datetime

from flettner.agent.domain.effects import Examine
from flettner.agent.domain.events import Examined, Warmed
from flettner.agent.domain.model import Server
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.launching import begin_step
from flettner.agent.machine.launching import on_warmed as warmed_up
from flettner.agent.machine.replacing import drain_old_server
from flettner.agent.machine.rolling_back import roll_back
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    enter_phase,
    request_effect,
)


def on_warmed(rules: Rules, state: State, event: Warmed) -> Transition:
    """Examine a warm green if the plan asks for it; servers after the canary have the same setting."""
    canary = state.canary
    if canary.passed or not canary.plan.examine_s:
        return warmed_up(rules, state, event)
    note = f"{canary.green.name} is warm and answers the golden prompts"
    blue = (state.fleet.running or state.fleet.servers)[0]
    return examine_servers(enter_phase(state, Phase.WARMING, event.at, note), blue, canary.green)


def drain_or_examine(state: State, at: datetime, why: str) -> Transition:
    """Drain the first old server; the only server answers the golden prompts before it stops."""
    plan = state.canary.plan
    if state.fleet.replica_count > 1 or not (plan.examine_s and plan.compare_answers):
        return drain_old_server(state, at, why)
    blue = state.fleet.running[0]
    note = f"{why}: {blue.name} answers the golden prompts before it stops"
    return examine_servers(enter_phase(state, Phase.DRAINING, at, note), blue, None)


def examine_servers(state: State, blue: Server, green: Server | None) -> Transition:
    plan = state.canary.plan
    effect = Examine(
        number=0, blue=blue, green=green, deadline_s=plan.examine_s, compare=plan.compare_answers
    )
    return request_effect(state, effect)


def on_examined(_: Rules, state: State, event: Examined) -> Transition:
    """Begin the canary if the answers match; else roll back before green gets traffic."""
    quality = event.quality
    state = replace(state, rollout=replace(state.canary, quality=quality))
    if not quality.ok:
        return roll_back(state, event.at, quality.why, result="rolled_back")
    return begin_step(enter_phase(state, Phase.CANARY, event.at, f"green is warm; {quality.why}"), 0)


def on_blue_answered(_: Rules, state: State, event: Examined) -> Transition:
    """Drain blue once it has answered."""
    return drain_old_server(state, event.at, event.quality.why)
