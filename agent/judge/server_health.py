"""When a server fails: it stands still, refuses connections, or most of its requests fail. Pure.

A slow server does not fail: it computes tokens, and what waits in its queue is late. Failing requests alone
are a failure only if another server of the target answers well at the same time. For one server, or if all
of them err, the error budget says it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import NO_REQUESTS, ClientBucket, RequestCounts
from flettner.agent.domain.server_health import Failure, FailureKind, ServerHealth
from flettner.agent.judge.hard_limits import (
    BAD,
    CONTROL_AT_LEAST,
    CONTROL_BAD,
    REQUESTS,
    UNREACHED,
    WEDGED_S,
    is_fresh,
)

SILENT_S = 5.0  # after a scrape failed, which takes up to 3 s: a busy event loop stalls for seconds, too
STILL_S = 10.0  # of UNREACHED requests at a server that computes; else WEDGED_S: prompts may be long
FADED = 0.01  # of a request
FADES = 0.5 ** (1 / 30)  # of the requests that count, each second
BACK_S = 5.0  # of answered scrapes before a silent server counts as back
PAUSE_S = 60.0  # before a server whose requests failed is tried again
MOST_DOUBLINGS = 4
PROVES = timedelta(seconds=30)  # after which a server that is back has shown what so few requests show
SOON = timedelta(minutes=10)  # a failure so soon after the last one waits twice as long


NO_CLIENTS: Mapping[ClientBucket, RequestCounts] = {}

Carriers = Literal["serve", "fail", "hang"]
"""What the servers with a share of the traffic do. `fail`: each fails most of its requests, or hangs."""


def update_health(
    health: ServerHealth,
    engine: EngineLiveness | None,
    counts: RequestCounts,
    clients: Mapping[ClientBucket, RequestCounts] = NO_CLIENTS,
) -> ServerHealth:
    """Add one second. `engine`: None if the server was never scraped. `clients`: of `counts`, where known."""
    answered = counts.total > counts.errors
    fresh = engine is not None and is_fresh(engine)
    lost = engine is not None and (engine.lost or engine.paused)
    busy = engine is not None and engine.running + engine.waiting > 0 and engine.tokens == 0
    still = fresh and busy and not answered
    if engine is not None and engine.restarted:
        health = ServerHealth(failures=health.failures, back_at=health.back_at)
    scale = min(FADES, REQUESTS / max(health.of + counts.total, 1.0))
    new = {str(client.number): arm for client, arm in clients.items() if client.pinned}
    pinned = {
        bucket: (health.pinned.get(bucket, (0.0, 0.0)), new.get(bucket, NO_REQUESTS))
        for bucket in {**health.pinned, **new}
    }
    return replace(
        health,
        silent_s=health.silent_s + 1.0 if lost and not answered else 0.0,
        fresh_s=health.fresh_s + 1.0 if fresh else 0.0,
        still_s=health.still_s + 1.0 if still else 0.0,
        heard=counts.total > 0,
        open=engine.running + engine.waiting if engine is not None else 0.0,
        paused=engine is not None and engine.paused,
        advances=fresh and engine is not None and bool(engine.tokens),
        of=round(scale * (health.of + counts.total), 3),
        bad=round(scale * (health.bad + counts.errors), 3),
        unreached=round(scale * (health.unreached + counts.unreached), 3),
        pinned={
            bucket: (round(scale * (of + arm.total), 3), round(scale * (bad + arm.errors), 3))
            for bucket, ((of, bad), arm) in pinned.items()
            if of + arm.total > FADED
        },
    )


def find_failure(health: ServerHealth, others: Sequence[ServerHealth]) -> tuple[FailureKind, str] | None:
    """Why the server fails; None if it does not. `others`: the other servers of the target."""
    if health.paused and health.silent_s:
        return "paused", "is frozen: its container is paused"
    if health.silent_s >= SILENT_S:
        return "silent", "answers neither its scrapes nor a request"
    compared = any(other.advances for other in others) and health.open >= UNREACHED
    if health.still_s >= (STILL_S if compared else WEDGED_S):
        return "wedged", f"has had requests for {health.still_s:.0f} s without computing a token"
    if not health.heard:
        return None  # its last requests are older than those of the other servers
    refused = health.unreached >= max(UNREACHED - 0.5, BAD * health.of)
    failed = requests_fail(health)
    compared_with = [other for other in others if other.of >= CONTROL_AT_LEAST]
    of = sum(other.of for other in compared_with)
    if refused and (not of or sum(other.unreached for other in compared_with) < CONTROL_BAD * of):
        return "unreached", f"refused {health.unreached:.0f} of its last {health.of:.0f} requests"
    if failed and sum(other.bad for other in compared_with) < CONTROL_BAD * of:
        return "errors", f"failed {health.bad:.0f} of its last {health.of:.0f} requests"
    return None


def requests_fail(health: ServerHealth) -> bool:
    """Whether most of its last requests failed, also of those of all clients but one that is pinned to it."""
    rest = [(health.of - of, health.bad - bad) for of, bad in health.pinned.values()]
    return health.of >= REQUESTS - 1 and all(
        of >= UNREACHED - 1 and bad >= BAD * of - 1  # decaying sums only near these
        for of, bad in [(health.of, health.bad), *rest]
    )


def begin_failure(health: ServerHealth, kind: FailureKind, why: str, at: datetime) -> Failure:
    again = health.back_at is not None and at - health.back_at < SOON
    return Failure(kind=kind, why=why, since=at, times=health.failures + 1 if again else 1)


def is_back(health: ServerHealth, failure: Failure, at: datetime, carriers: Carriers = "serve") -> bool:
    """Whether a failing server may get requests again.

    What answers again shows it by itself. Failing requests show nothing once the server gets none, so after a
    pause that doubles it is tried: at most REQUESTS of its requests decide again. It is tried sooner, once
    its scrapes are answered, where that costs few answers or none.
    """
    if failure.kind == "wedged" and health.open:
        return health.advances
    if carriers == "hang" and health.fresh_s >= BACK_S:
        return True
    doubled = 2.0 ** min(failure.times - 1, MOST_DOUBLINGS)
    if carriers == "fail" or failure.kind in ("paused", "silent"):
        return health.fresh_s >= BACK_S * doubled
    waited = at - failure.since
    set_back = waited < timedelta()  # the clock was
    return not health.silent_s and (set_back or waited >= timedelta(seconds=PAUSE_S * doubled))


def end_failure(health: ServerHealth, failure: Failure, at: datetime) -> ServerHealth:
    """Forget the failed requests: only later ones count from now on."""
    return ServerHealth(fresh_s=health.fresh_s, failures=failure.times, back_at=at)


def is_proven(health: ServerHealth | None, at: datetime) -> bool:
    """Whether a server that failed has answered enough requests since it is back, or got few of them."""
    if health is None or health.back_at is None or not timedelta() <= at - health.back_at < PROVES:
        return True
    return health.of >= REQUESTS - 1


def is_well(health: ServerHealth | None) -> bool:
    """Whether its scrapes are answered: it may take over the requests of a failing server."""
    return health is not None and health.fresh_s > 0
