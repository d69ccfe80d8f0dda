"""The moves that several phases share: asking for an effect, splitting traffic, remembering an outcome."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from agent.effects import Effect, Launch, Retire, Route
from agent.events import ServerLost
from agent.guard import Guard
from agent.model import Outcome, Plan, Server, Slo
from agent.ports import Context, Judge, Policy
from agent.state import Awaited, Phase, State, Suggestion

Moved = tuple[State, tuple[Effect, ...]]
REMEMBERED = 50  # outcomes kept in the state; the journal has them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the machine decides by: fixed for the life of the process."""

    plan: Plan
    judge: Judge
    slo: Slo = field(default_factory=Slo)
    guard: Guard = field(default_factory=Guard)
    policies: Sequence[tuple[str, Policy]] = ()  # asked in order; the first that is admitted is heard

    def context(self, state: State) -> Context | None:
        """What the policies may know; None while no server is known."""
        if state.blue is None:
            return None
        return Context(
            setting=state.blue.setting, slo=self.slo, bounds=self.guard.bounds, outcomes=state.outcomes
        )


def stay(state: State) -> Moved:
    return state, ()


def ask(state: State, effect: Awaited) -> Moved:
    """Number the effect and await its outcome; what was awaited before no longer matters."""
    numbered = replace(effect, number=state.effects + 1)
    route = numbered if isinstance(numbered, Route) else state.route
    return replace(state, effects=numbered.number, awaiting=numbered, route=route, retry_at=None), (numbered,)


def ask_again(state: State) -> Moved:
    """The awaited effect once more, under a new number."""
    return stay(state) if state.awaiting is None else ask(state, state.awaiting)


def also_retire(moved: Moved, server: Server) -> Moved:
    """Retire a server on the side; nothing waits for the outcome."""
    state, effects = moved
    extra = Retire(number=state.effects + 1, server=server)
    return replace(state, effects=extra.number), (*effects, extra)


def name_next(state: State) -> tuple[State, str]:
    number = state.servers + 1
    return replace(state, servers=number), f"{state.target}-r{number}"


def all_to(server: Server, *others: Server) -> Route:
    """Everything to one server; the others stay known to the proxy so that their open requests go on."""
    return Route(
        number=0,
        servers=(server, *others),
        weights={server.name: 100, **{other.name: 0 for other in others}},
        fallback=server.name,
    )


def split(blue: Server, green: Server, weight: int, lease_s: float) -> Route:
    """Green's share, on a lease: without renewal it returns to blue."""
    return Route(
        number=0,
        servers=(blue, green),
        weights={blue.name: 100 - weight, green.name: weight},
        fallback=blue.name,
        leased=green.name,
        lease_s=lease_s,
    )


def enter(state: State, phase: Phase, at: datetime, note: str) -> State:
    rollout = replace(state.rollout, phase_since=at) if state.rollout else None
    return replace(state, phase=phase, rollout=rollout, until=None, tries=0, note=note)


def promoting(state: State, at: datetime, why: str) -> State:
    """From here on green is what stays; why it was promoted is part of the rollout."""
    rollout = replace(state.rollout, why=why) if state.rollout else None
    return enter(replace(state, rollout=rollout), Phase.PROMOTING, at, why)


def later(state: State, at: datetime, why: str) -> State:
    """Try the awaited effect again after a pause that doubles, 30 s at most."""
    pause = timedelta(seconds=min(2**state.tries, 30))
    return replace(state, retry_at=at + pause, tries=state.tries + 1, note=why)


def remember(
    state: State,
    at: datetime,
    result: Literal["promoted", "rolled_back", "failed", "denied"],
    suggestion: Suggestion,
    why: str,
) -> State:
    outcome = Outcome(at=at, result=result, to=suggestion.proposal.to, before=suggestion.before, why=why)
    return replace(state, outcomes=(*state.outcomes, outcome)[-REMEMBERED:])


def close(suggestion: Suggestion | None, status: Literal["expired", "superseded"]) -> Suggestion | None:
    """An open suggestion ends; a decided one stays as it is."""
    if suggestion is None or suggestion.status != "open":
        return suggestion
    return replace(suggestion, status=status)


def roll_back(
    state: State, at: datetime, why: str, log: tuple[str, ...] = (), *, hung: bool = False
) -> Moved:
    """Traffic back to blue, if green had any; then green drains (not for long if it hung) and goes."""
    blue, green, rollout = state.blue, state.green, state.rollout
    if blue is None or green is None or rollout is None:
        raise AssertionError(f"nothing to roll back in {state.phase}")
    before_traffic = state.phase in {Phase.LAUNCHING, Phase.WARMING}
    ended = replace(rollout, outcome="rolled_back", why=why, log=log, hung=hung)
    state = enter(replace(state, rollout=ended), Phase.ROLLING_BACK, at, why)
    if state.suggestion is not None:
        state = remember(state, at, "failed" if before_traffic else "rolled_back", state.suggestion, why)
    if before_traffic:
        return ask(state, Retire(number=0, server=green))
    return ask(state, all_to(blue, green))


def restore(state: State, at: datetime, why: str, start_s: float) -> Moved:
    """No server is left: start one with the setting in force. A green that was on its way goes."""
    old, green = state.blue, state.green
    ended = (
        replace(state.rollout, outcome="rolled_back", why=why, ended_at=at)
        if green and state.rollout
        else None
    )
    state = replace(
        state, green=None, suggestion=close(state.suggestion, "superseded"), rollout=ended or state.rollout
    )
    state, name = name_next(enter(state, Phase.RESTORING, at, why))
    fresh = Server(name=name, setting=old.setting if old else {})
    moved = ask(state, Launch(number=0, server=fresh, deadline_s=start_s))
    for gone in (old, green):
        if gone is not None:
            moved = also_retire(moved, gone)
    return moved


def lost_green(state: State, event: ServerLost) -> bool:
    return state.green is not None and event.server == state.green.name


def lost_blue(state: State, event: ServerLost) -> bool:
    """Blue is gone for good. One that only hangs is left alone: its requests may still end."""
    return state.blue is not None and event.server == state.blue.name and event.gone


def awaited(state: State, number: int) -> bool:
    return state.awaiting is not None and state.awaiting.number == number
