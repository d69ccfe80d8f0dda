"""The moves that several phases share: asking for an effect, splitting traffic, remembering an outcome."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from agent.effects import Effect, Launch, Retire, Route
from agent.events import ServerLost
from agent.guard import DENIED_FOR, Guard
from agent.model import Outcome, OutcomeResult, Plan, Server, Slo
from agent.ports import Context, Judge, Policy
from agent.state import Awaited, Phase, State, Suggestion

Moved = tuple[State, tuple[Effect, ...]]
REMEMBERED = 200  # outcomes kept in the state; the journal has them all


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


def promote_alone(state: State, at: datetime, why: str) -> Moved:
    """Blue is gone and green is up: everything to green, judged or not, because nothing else serves."""
    if state.green is None:
        raise AssertionError(f"no green to promote in {state.phase}")
    alone = ask(promoting(state, at, why), all_to(state.green))
    return also_retire(alone, state.blue) if state.blue is not None and state.blue.ours else alone


def promoting(state: State, at: datetime, why: str) -> State:
    """From here on green is what stays; why it was promoted is part of the rollout."""
    rollout = replace(state.rollout, why=why) if state.rollout else None
    return enter(replace(state, rollout=rollout), Phase.PROMOTING, at, why)


def later(state: State, at: datetime, why: str) -> State:
    """Try the awaited effect again after a pause that doubles, 30 s at most."""
    pause = timedelta(seconds=min(2**state.tries, 30))
    return replace(state, retry_at=at + pause, tries=state.tries + 1, note=why)


def remember(state: State, at: datetime, result: OutcomeResult, why: str) -> State:
    """What became of the approved change; a denial is forgotten when it has had its time."""
    suggestion = state.suggestion
    if suggestion is None:
        return state
    outcome = Outcome(at=at, result=result, to=suggestion.proposal.to, before=suggestion.before, why=why)
    kept = [o for o in state.outcomes if o.result != "denied" or at < o.at + DENIED_FOR]
    return replace(state, outcomes=(*kept, outcome)[-REMEMBERED:])


def close(suggestion: Suggestion | None, status: Literal["expired", "superseded"]) -> Suggestion | None:
    """An open suggestion ends; a decided one stays as it is."""
    if suggestion is None or suggestion.status != "open":
        return suggestion
    return replace(suggestion, status=status)


def roll_back(
    state: State,
    at: datetime,
    why: str,
    log: tuple[str, ...] = (),
    *,
    hung: bool = False,
    result: OutcomeResult | None = None,
) -> Moved:
    """Traffic back to blue, if green had any; then green drains (not for long if it hung) and goes.

    `result`: what is remembered of the value, where it is not to blame for what happened.
    """
    blue, green, rollout = state.blue, state.green, state.rollout
    if blue is None or green is None or rollout is None:
        raise AssertionError(f"nothing to roll back in {state.phase}")
    before_traffic = state.phase in {Phase.LAUNCHING, Phase.WARMING}
    state = remember(state, at, result or ("failed" if before_traffic else "rolled_back"), why)
    ended = replace(rollout, outcome="rolled_back", why=why, log=log, hung=hung)
    state = enter(replace(state, rollout=ended), Phase.ROLLING_BACK, at, why)
    if before_traffic:
        return ask(state, Retire(number=0, server=green))
    return ask(state, all_to(blue, green))


def restore(rules: Rules, state: State, at: datetime, why: str) -> Moved:
    """Blue is gone: start a server with its setting.

    A green that serves keeps all the traffic until then; any other green goes, and with it the rollout. What
    blue's process left behind is cleared away first: it may hold the GPU's memory.
    """
    blue, green, rollout = state.blue, state.green, state.rollout
    if rollout is not None and rollout.ended_at is None:
        if rollout.outcome == "running":
            state = remember(state, at, "failed", why)
            rollout = replace(rollout, outcome="rolled_back", why=why)
        rollout = rollout if serves(state, green) else replace(rollout, ended_at=at)
    state = replace(state, suggestion=close(state.suggestion, "superseded"), rollout=rollout)
    state = enter(state, Phase.RESTORING, at, why)
    if green is not None and serves(state, green):
        meanwhile = replace(all_to(green), number=state.effects + 1)
        state = replace(state, effects=meanwhile.number, route=meanwhile)
        state, effects = clear_away(rules, state, blue)
        return state, (meanwhile, *effects)
    moved = clear_away(rules, replace(state, green=None), blue)
    return also_retire(moved, green) if green is not None else moved


def clear_away(rules: Rules, state: State, old: Server | None) -> Moved:
    """What is ours of the old server goes before its successor starts; somebody else's is theirs to stop."""
    if old is not None and old.ours:
        return ask(state, Retire(number=0, server=old))
    return launch_successor(rules, state)


def launch_successor(rules: Rules, state: State) -> Moved:
    setting = state.blue.setting if state.blue else {}  # none: as the command says
    state, name = name_next(state)
    fresh = Server(name=name, setting=setting)
    return ask(state, Launch(number=0, server=fresh, deadline_s=rules.plan.start_s))


def serves(state: State, server: Server | None) -> bool:
    """It is up, as far as is known, and the proxy has it: it could carry all the traffic at once."""
    return (
        server is not None
        and bool(server.address)
        and server.name not in state.gone
        and state.route is not None
        and server.name in state.route.weights
        and not (state.rollout is not None and state.rollout.hung)
    )


def is_green(state: State, event: ServerLost) -> bool:
    return state.green is not None and event.server == state.green.name


def blue_is_gone(state: State) -> bool:
    """Its process has ended. A blue that only hangs is left alone: its requests may still end."""
    return state.blue is not None and state.blue.name in state.gone


def awaited(state: State, number: int) -> bool:
    return state.awaiting is not None and state.awaiting.number == number
