"""Which servers fail at present, in every phase. Pure; flettner.agent.judge.server_health decides."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flettner.agent.domain.events import Event, Observed, ServerLost
from flettner.agent.domain.model import Server
from flettner.agent.domain.request_counts import NO_REQUESTS
from flettner.agent.domain.server_health import Failure, ServerHealth
from flettner.agent.domain.state import State
from flettner.agent.judge.server_health import (
    NO_CLIENTS,
    Carriers,
    begin_failure,
    end_failure,
    find_failure,
    is_back,
    requests_fail,
    update_health,
)

NEW = ServerHealth()
HANGING = {"paused", "silent", "wedged"}  # open requests there do not end


def assess_servers(state: State, event: Event) -> State:
    """Add the second to each server's health; begin and end failures."""
    if isinstance(event, ServerLost) and not event.gone:
        return _note_silence(state, event)
    if not isinstance(event, Observed):
        return state
    health = {
        server.name: update_health(
            state.health.get(server.name, NEW),
            event.engines.get(server.name),
            event.arms.get(server.name, NO_REQUESTS),
            event.clients.get(server.name, NO_CLIENTS),
        )
        for server in state.reachable
    }
    failing: dict[str, Failure] = {}
    carriers = _assess_carriers(state, health)
    for name, now in health.items():
        failure, engine = state.failing.get(name), event.engines.get(name)
        problem = find_failure(now, [other for another, other in health.items() if another != name])
        if failure is None and problem is not None:
            failing[name] = begin_failure(now, *problem, event.at)
            health[name] = replace(now, fresh_s=0.0)
        elif failure is None:
            continue
        elif problem is not None and problem[0] in HANGING and failure.kind not in HANGING:
            failing[name] = replace(failure, kind=problem[0], why=problem[1])
        elif (engine is not None and engine.restarted) or is_back(
            now, failure, event.at, "serve" if carries(state, name) else carriers
        ):
            health[name] = end_failure(now, failure, event.at)
        else:
            failing[name] = failure
    return replace(state, health=health, failing=failing)


def _assess_carriers(state: State, health: Mapping[str, ServerHealth]) -> Carriers:
    carriers = {*state.split.carriers}
    hanging = {name for name, failure in state.failing.items() if failure.kind in HANGING}
    if not carriers:
        return "serve"
    if carriers <= hanging:
        return "hang"
    return "fail" if all(requests_fail(health.get(name, NEW)) for name in carriers - hanging) else "serve"


def _note_silence(state: State, event: ServerLost) -> State:
    """The engine's own probes found that the server does not answer."""
    name = event.server
    if name in state.failing or name not in {server.name for server in state.reachable}:
        return state
    health = state.health.get(name, NEW)
    why = event.why.removeprefix(f"{name} ")
    failure = begin_failure(health, "silent", why, event.at)
    return replace(
        state,
        failing={**state.failing, name: failure},
        health={**state.health, name: replace(health, fresh_s=0.0)},
    )


def fails(state: State, server: Server) -> bool:
    return server.name in state.failing


def errs(state: State, server: Server) -> bool:
    """Whether the server answers, and most of its last requests failed."""
    failure = state.failing.get(server.name)
    hangs = failure is not None and failure.kind in HANGING
    return not hangs and not is_silent(state, server) and requests_fail(state.health.get(server.name, NEW))


def failing_green(state: State) -> tuple[str, Failure] | None:
    """The first new server that fails while an old one does not; None if there is none.

    An old server that is silent, too, counts as failing before it is certain: scrapes are spread over the
    second, so of two servers that freeze together one is found earlier.
    """
    if all(fails(state, server) or is_silent(state, server) for server in state.fleet.running):
        return None
    for server in state.greens:
        if (failure := state.failing.get(server.name)) is not None:
            return server.name, failure
    return None


def is_silent(state: State, server: Server) -> bool:
    """Whether its metrics have not been read in the last second."""
    return state.health.get(server.name, NEW).silent_s > 0


def carries(state: State, name: str) -> bool:
    return bool(state.split.weights.get(name))


def blue_fails_more(state: State) -> bool:
    """Whether a larger share of the old servers' last requests failed than of the new ones'."""
    return _failed_share(state, state.fleet.running) > _failed_share(state, state.greens)


def _failed_share(state: State, servers: Sequence[Server]) -> float:
    healths = [state.health.get(server.name, NEW) for server in servers]
    of = sum(health.of for health in healths)
    return sum(health.bad for health in healths) / of if of else 0.0


def describe_failures(state: State) -> str:
    """One sentence a server; empty if none fails."""
    return "; ".join(f"{name} {failure.why}" for name, failure in state.failing.items())
