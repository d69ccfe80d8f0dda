"""The last log lines of a rollout's new server while the rollout runs."""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, takewhile

from pydantic import Field

from flettner.agent.api.daemon_view import TargetView
from flettner.agent.api.documents import Document, DocumentText
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.routes.rollouts import UNKNOWN, find_rollout
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.domain.state import State

LINES = 40
BYTES = 32 * 1024


class LogDocument(Document):
    rollout: str
    server: str | None = Field(
        description="the newest server, whose log this is; null if it does not run or the rollout has ended"
    )
    live: bool = Field(
        description="read now; false: the rollout has ended, and these are the lines that it kept"
    )
    at: datetime = Field(description="the daemon's clock")
    lines: list[DocumentText] = Field(
        description=f"oldest first, without control characters and secrets; at most {LINES}, of {BYTES} bytes"
    )
    why: DocumentText = Field(description="why there are no lines; empty when there are")


async def _log(call: Call) -> LogDocument:
    name, rollout = find_rollout(call)
    live = rollout.ended_at is None
    target = call.daemon.targets().get(name)
    server = newest(target.state, rollout) if live and target is not None else None
    if target is not None and server is not None:
        lines, why = await _read(target, server)
    elif live:
        lines, why = (), "The new server does not run now."
    else:
        lines = rollout.log if isinstance(rollout, Canary) else ()
        why = "The rollout has ended and kept no lines of a lost server."
    shown = latest(lines)
    return LogDocument(
        rollout=rollout.id,
        server=server.name if server else None,
        live=live,
        at=call.daemon.now(),
        lines=shown,
        why="" if shown else why,
    )


async def _read(target: TargetView, server: Server) -> tuple[tuple[str, ...], str]:
    """The lines, and the message to show if there are none."""
    try:
        return await target.log(server), f"{server.name} has written nothing."
    except ActError as error:
        return (), f"It cannot be read: {error.why}"


def newest(state: State, rollout: Rollout) -> Server | None:
    """Green; after its promotion, the server that the rollout started with."""
    if not isinstance(rollout, Canary):
        return None
    if isinstance(state.rollout, Canary) and state.rollout.newest is not None:
        return state.rollout.newest
    return next((server for server in state.servers if server.name == rollout.server), None)


def latest(lines: Sequence[str]) -> list[str]:
    """The last lines within LINES and BYTES."""
    last = list(reversed(lines))[:LINES]
    sizes = accumulate(len(line.encode("utf-8", "replace")) + 1 for line in last)
    fitting = sum(1 for _ in takewhile(lambda size: size <= BYTES, sizes))
    return last[:fitting][::-1]


OPERATIONS = (
    Operation(
        name="showRolloutLog",
        method="GET",
        path="/v1/rollouts/{id}/log",
        role="viewer",
        summary="The last lines of the new server's log while the rollout runs",
        handler=_log,
        response=LogDocument,
        errors=UNKNOWN,
    ),
)
