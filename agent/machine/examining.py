"""WARMING, before the canary: does green still say what blue says? A swap asks blue before it stops."""

from dataclasses import replace
from datetime import datetime

from agent.domain.effects import Examine
from agent.domain.events import Examined, Warmed
from agent.domain.model import Server
from agent.domain.state import Phase, State
from agent.machine.replacing import vacate
from agent.machine.rolling_back import roll_back
from agent.machine.rolling_out import take_step
from agent.machine.rolling_out import warmed as warmed_up
from agent.machine.transitions import Moved, Rules, ask, awaited, enter, stay


def warmed(rules: Rules, state: State, event: Warmed) -> Moved:
    """Green is warm: examined first, where that is needed; the servers after the canary have its setting."""
    green, rollout = state.green, state.rollout
    if green is None or rollout is None or not awaited(state, event.number):
        return stay(state)
    if rollout.passed or not rollout.plan.examine_s:
        return warmed_up(rules, state, event)
    asked = enter(state, Phase.WARMING, event.at, f"{green.name} is warm: it answers the golden prompts")
    return ask_both(asked, (state.standing or state.fleet)[0], green)


def vacate_or_ask(state: State, at: datetime, why: str) -> Moved:
    """The first place is turned; where nobody stays beside green, blue answers before it stops."""
    if len(state.standing) > 1 or state.rollout is None or not state.rollout.plan.examine_s:
        return vacate(state, at, why)
    blue = state.standing[0]
    asked = enter(state, Phase.VACATING, at, f"{why}: {blue.name} answers the golden prompts before it stops")
    return ask_both(asked, blue, None)


def ask_both(state: State, blue: Server, green: Server | None) -> Moved:
    within_s = state.rollout.plan.examine_s if state.rollout else 0.0
    return ask(state, Examine(number=0, blue=blue, green=green, deadline_s=within_s))


def examined(_: Rules, state: State, event: Examined) -> Moved:
    """Green says what blue says: on to the canary. Else back, before it got any traffic."""
    if state.rollout is None or not awaited(state, event.number):
        return stay(state)
    quality = event.quality
    state = replace(state, rollout=replace(state.rollout, quality=quality))
    if not quality.ok:
        return roll_back(state, event.at, quality.why, result="rolled_back")
    return take_step(enter(state, Phase.CANARY, event.at, f"green is warm; {quality.why}"), 0)


def answered(_: Rules, state: State, event: Examined) -> Moved:
    """Blue has answered: now it may give its place."""
    if not awaited(state, event.number):
        return stay(state)
    return vacate(state, event.at, event.quality.why)
