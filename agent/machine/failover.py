"""Failover: healthy servers carry the traffic of failing ones, in every phase. Pure.

Each phase requests its split as if all servers were well. After each step this pass takes the shares of
failing servers from it and keeps the split itself in `planned`, which comes into force again when they
answer. Traffic never moves toward a server that fails more: if no other server is known to be well, the split
in force stays.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.effects import Drain, Effect, KeepAlive, Route
from flettner.agent.domain.model import Server
from flettner.agent.domain.rollout import HotChange
from flettner.agent.domain.state import Phase, State
from flettner.agent.judge.server_health import is_well
from flettner.agent.machine.failing import HANGING, describe_failures, fails
from flettner.agent.machine.hot_trial import LEASE_S, arm_in_force
from flettner.agent.machine.routes import equal_shares
from flettner.agent.machine.transitions import Transition, take_number

VALUES_END = timedelta(seconds=LEASE_S + 1.0)
"""The lease of values that are tried, and a second to see its end."""

KEEPS = frozenset({Phase.CANARY, Phase.ROLLING_BACK})
"""Phases in which a server without a share may get one: nothing else is about to happen to it."""


def leave_failing_servers(before: State, moved: Transition, at: datetime) -> Transition:
    """Replace the split while one of its servers fails, and put it back in force afterwards."""
    state, effects = moved
    plan = state.split.intended
    if plan is None or plan.closed_s or state.mode == "advise" or state.phase is Phase.HALTED:
        return moved
    wanted = split_without_failing(before, state, plan, at)
    state = replace(state, split=replace(state.split, planned=None if _is_same(wanted, plan) else plan))
    if state.split.route is None or _is_same(wanted, state.split.route):
        return state, effects
    return _request(before, state, effects, wanted)


def split_without_failing(before: State, state: State, plan: Route, at: datetime) -> Route:
    """The planned split without the shares of failing servers; `plan` itself if none fails.

    If no other server is known to be well, the split before this step stays. If that is not possible, those
    that err carry the traffic of those that hang: they answer some of it.
    """
    routed = [server for server in plan.servers if plan.weights.get(server.name)]
    if not any(fails(state, server) and not _errs_by_trial(state, server, at) for server in routed):
        return plan
    takers = _takers(before, state, routed)
    if not takers and state.phase in KEEPS:
        takers = _takers(before, state, plan.servers)
    if not takers and (stays := _as_before(before, state, plan)) is not None:
        return stays
    takers = takers or [server for server in routed if not _hangs(state, server)]
    if not takers:
        return plan
    leased = next((s for s in takers if s.name == plan.leased), None) if len(takers) > 1 else None
    return replace(
        plan,
        weights={**dict.fromkeys(plan.weights, 0), **equal_shares(takers)},
        fallback=next(server.name for server in takers if server is not leased),
        leased=leased.name if leased else None,
        lease_s=plan.lease_s if leased else 0.0,
    )


def _errs_by_trial(state: State, server: Server, at: datetime) -> bool:
    """Whether its errors may be those of values that a trial gave to all servers.

    They end when the values are taken back, which happens at once, or with their lease. Meanwhile the server
    that errs least may be the one that has the values for longest.
    """
    failure, change = state.failing[server.name], state.rollout
    if failure.kind != "errors" or not isinstance(change, HotChange) or change.ended_at is not None:
        return False
    ends = state.phase is Phase.ROLLING_BACK or arm_in_force(state) != "present"
    return ends and timedelta() <= at - failure.since < VALUES_END


def _takers(before: State, state: State, servers: Sequence[Server]) -> list[Server]:
    """Those that may carry the traffic: known to be well, or carrying it since the failover began."""
    carry = before.split.weights if before.split.planned is not None else {}
    return [
        server
        for server in servers
        if not fails(state, server)
        and server.address
        and server.name not in (state.effects.ending, *state.fleet.exited, *state.fleet.stopped)
        and (is_well(state.health.get(server.name)) or carry.get(server.name))
    ]


def _hangs(state: State, server: Server) -> bool:
    failure = state.failing.get(server.name)
    return failure is not None and failure.kind in HANGING


def _as_before(before: State, state: State, plan: Route) -> Route | None:
    """The split before this step, if its servers still run and are part of the plan."""
    now, carriers = before.split.route, before.split.carriers
    if now is None or not carriers or any(n in state.fleet.exited or n not in plan.weights for n in carriers):
        return None
    return replace(
        plan,
        weights={name: now.weights.get(name, 0) for name in plan.weights},
        fallback=now.fallback if now.fallback in plan.weights else carriers[0],
        leased=now.leased,
        lease_s=now.lease_s,
    )


def _is_same(route: Route, other: Route) -> bool:
    return _parts(route) == _parts(other)


def _parts(route: Route) -> tuple[object, ...]:
    shares = {name: weight for name, weight in route.weights.items() if weight}
    return shares, route.leased, route.fallback


def _request(before: State, state: State, effects: tuple[Effect, ...], wanted: Route) -> Transition:
    """Request this split, and await it unless something else is awaited."""
    state, number = take_number(state)
    route = replace(wanted, number=number)
    if state.effects.awaited is None or isinstance(state.effects.awaited, Route) or _returns(state, route):
        state = replace(state, effects=state.effects.await_effect(route))
    if (
        state.phase is Phase.CANARY and state.split.planned is not None
    ):  # blue's failure says nothing of green
        canary = state.canary
        state = replace(state, rollout=canary.with_fresh_step(holding=canary.evidence.holding))
    rest = tuple(effect for effect in effects if not isinstance(effect, Route | KeepAlive))
    state = replace(state, split=replace(state.split, route=route))
    if state.split.planned is not None:
        state = replace(state, note=describe_failover(state))
    elif before.split.planned is not None:
        state = replace(
            state, note=f"the failover is over: {', '.join(state.split.carriers)} has the traffic"
        )
    return state, (*rest, route)


def _returns(state: State, route: Route) -> bool:
    """Whether a server that drains after a rollback gets traffic again, so that it must not be retired."""
    drains = state.effects.awaited.server.name if isinstance(state.effects.awaited, Drain) else ""
    return state.phase is Phase.ROLLING_BACK and bool(route.weights.get(drains))


def describe_failover(state: State) -> str:
    """Which servers fail, and which ones carry their traffic; empty without a failover."""
    if state.split.planned is None:
        return ""
    return f"failover: {describe_failures(state)}; {', '.join(state.split.carriers)} has the traffic"
