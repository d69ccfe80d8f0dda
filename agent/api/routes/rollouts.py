"""Rollouts: list, show and abort."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from flettner.agent.api.documents import RolloutDocument, rollout_of
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.request_parsing import Reason
from flettner.agent.api.routes.targets import find_target
from flettner.agent.domain.events import Aborted
from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.state import Phase, State

FORWARD = {
    Phase.DRAINING,
    Phase.LAUNCHING,
    Phase.WARMING,
    Phase.CANARY,
    Phase.TRIAL,
    Phase.SAVING,
    Phase.REPLACING,
    Phase.PROMOTING,
}


class AbortBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason


class RolloutsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    target: str | None = None
    outcome: Literal["running", "promoted", "rolled_back"] | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class RolloutsDocument(BaseModel):
    rollouts: list[RolloutDocument]


def find_rollout(call: Call) -> tuple[str, Rollout]:
    """Its target, and the rollout that the path names. Raises RequestRefusedError (404)."""
    name = call.part("id")
    for target, rollout in call.daemon.rollouts():
        if rollout.id == name:
            return target, rollout
    raise RequestRefusedError(
        404, f"There is no rollout {name[:100]!r}; GET /v1/rollouts lists them.", kind="no-such-rollout"
    )


async def _list(call: Call) -> RolloutsDocument:
    query, targets = call.parsed_as(RolloutsQuery), call.daemon.targets()
    states = {name: target.state for name, target in targets.items()}
    chosen = [
        rollout_of(states.get(target), target, rollout)
        for target, rollout in call.daemon.rollouts()
        if query.target in {None, target} and query.outcome in {None, rollout.outcome}
    ]
    return RolloutsDocument(rollouts=chosen[: query.limit])


async def _show(call: Call) -> RolloutDocument:
    target, rollout = find_rollout(call)
    points = call.daemon.points(rollout.id)
    return rollout_of(call.state(target), target, rollout, points)


def lasts(state: State, rollout: Rollout) -> bool:
    """Whether it is in force and can be ended: spared servers, or switching between settings."""
    if state.switching is not None and state.switching.covers(rollout.id):
        return True
    return bool(state.fleet.spared) and state.rollout == rollout


async def _abort(call: Call) -> RolloutDocument:
    name, rollout = find_rollout(call)
    target = find_target(call, name)
    goes_on = lasts(target.state, rollout)
    if rollout.outcome == "promoted" and not goes_on:
        detail = "The rollout was promoted and is over; propose the values before it (`flettner undo`)."
        raise RequestRefusedError(409, detail, kind="promoted")
    state = target.state
    if rollout.outcome == "rolled_back" or (state.phase is Phase.ROLLING_BACK and not goes_on):
        return rollout_of(state, name, rollout)
    reason = call.parsed_as(AbortBody).reason
    event = Aborted(at=call.daemon.now(), actor=call.actor, reason=reason, rollout=rollout.id)
    state = await call.submit(target, event)
    now = state.rollout if state.rollout and state.rollout.id == rollout.id else rollout
    if (now.outcome == "promoted" and not goes_on) or (now.outcome == "running" and state.phase in FORWARD):
        detail = (
            f"The rollout is {state.phase.value} and was not rolled back: {state.note or 'it is too late'}"
        )
        raise RequestRefusedError(409, detail, kind="not-taken")
    return rollout_of(state, name, now)


UNKNOWN = {404: "No such rollout."}

OPERATIONS = (
    Operation(
        name="listRollouts",
        method="GET",
        path="/v1/rollouts",
        role="viewer",
        summary="Rollouts, newest first",
        handler=_list,
        response=RolloutsDocument,
        query=RolloutsQuery,
    ),
    Operation(
        name="showRollout",
        method="GET",
        path="/v1/rollouts/{id}",
        role="viewer",
        summary="One rollout, with the evidence over time",
        handler=_show,
        response=RolloutDocument,
        errors=UNKNOWN,
    ),
    Operation(
        name="abortRollout",
        method="POST",
        path="/v1/rollouts/{id}/abort",
        role="operator",
        summary="Roll back a rollout; can be repeated",
        handler=_abort,
        response=RolloutDocument,
        body=AbortBody,
        errors={**UNKNOWN, 409: "It was promoted, or is past the point of no return."},
    ),
)
