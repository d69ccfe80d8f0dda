"""Targets: show, pause, resume, propose a change, and propose to undo the last one."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from flettner.agent.api.admission import (
    refuse_if_full,
    refuse_over_budget,
    refuse_too_many_open,
    refuse_upgrade,
)
from flettner.agent.api.daemon_view import TargetView
from flettner.agent.api.documents import SuggestionDocument, TargetDocument, suggestion_of, tag_of, target_of
from flettner.agent.api.operations import Call, Operation, OperationResult
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.request_parsing import PLAIN, Reason
from flettner.agent.domain.events import ChangeAsked, Paused, Resumed
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.upgrade import SERVED_NAME
from flettner.agent.machine.order import find_end, target_of_suggestion
from flettner.agent.machine.transitions import IDLE
from flettner.agent.machine.undoing import undo_last
from flettner.vllm_facts.values import Value

KnobName = Annotated[
    str, StringConstraints(pattern=r"^(?:[a-z][a-z0-9_]{0,63}|env\.[A-Za-z_][A-Za-z0-9_]{0,99})$")
]
MAX_TEXT = 200  # bytes of UTF-8
MAX_INTEGER = 2**53 - 1  # the largest whole number that canonical JSON, and so a digest, can carry


def _value(value: object) -> object:
    """A knob's value: one plain JSON value, short and exact."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if abs(value) > MAX_INTEGER:
            raise ValueError("a number beyond 2**53 is not exact")
        return value
    if not isinstance(value, str):
        raise ValueError("must be true, false, a number, a text or null")  # noqa: TRY004 - pydantic's way
    if len(value.encode("utf-8", "replace")) > MAX_TEXT or not value.isprintable():
        raise ValueError(f"must be printable text of at most {MAX_TEXT} bytes")
    return value


RequestedValue = Annotated[
    bool | int | float | str | None,
    BeforeValidator(_value),
    Field(description="printable text of at most 200 bytes, a number below 2**53; null: vLLM's own default"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["boolean", "null"]},
                {"type": "number", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
                {"type": "string", "maxLength": MAX_TEXT, "pattern": PLAIN},
            ]
        }
    ),
]


class ChangeBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: dict[KnobName, RequestedValue] = Field(
        min_length=1,
        max_length=16,
        description="by canonical flag name; an administrator may also name `image`, `command`, `env.NAME`, "
        "`model`, `revision` and `tokenizer`, within [targets.upgrades]",
        json_schema_extra={"additionalProperties": False},  # pydantic describes the names it takes, no more
    )
    reason: Reason
    accept_different_answers: bool = Field(
        default=False, description="the answers of the new servers are not compared with those in force"
    )
    after: str = Field(
        default="",
        max_length=MAX_TEXT,
        description="the suggestion of another target that must be promoted before this one starts; it ends "
        "with that one otherwise",
    )


class UndoBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason
    accept_different_answers: bool = Field(
        default=False, description="as of a proposed change: needed if the promotion changed the model"
    )


class PauseQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    maintenance: bool = Field(
        default=False, description="a server that exits is not started again before the target is resumed"
    )


class TargetsDocument(BaseModel):
    targets: list[TargetDocument]


def find_target(call: Call, name: str = "") -> TargetView:
    """The target that is named, else that of the path. Raises RequestRefusedError (404)."""
    targets, name = call.daemon.targets(), name or call.part("name")
    if name not in targets:
        names = ", ".join(sorted(targets)) or "none"
        raise RequestRefusedError(
            404, f"There is no target {name[:100]!r}; there are: {names}.", kind="no-such-target"
        )
    return targets[name]


async def _list(call: Call) -> TargetsDocument:
    targets = [target for _, target in sorted(call.daemon.targets().items())]
    return TargetsDocument(targets=[target_of(call.daemon, target, target.state) for target in targets])


async def _show(call: Call) -> TargetDocument:
    target = find_target(call)
    return target_of(call.daemon, target, target.state)


async def _pause(call: Call) -> TargetDocument:
    target = find_target(call)
    state = target.state
    maintenance = call.parsed_as(PauseQuery).maintenance
    if maintenance and state.phase not in IDLE:
        raise RequestRefusedError(409, f"No maintenance now: {_why_busy(state)}", kind="busy")
    changes = not state.paused or state.maintenance != maintenance
    if changes:
        _refuse_admin_pause(call, state)
    if changes or (call.by_admin and not state.admin_pause):
        event = Paused(
            at=call.daemon.now(), actor=call.actor, maintenance=maintenance, by_admin=call.by_admin
        )
        state = await call.submit(target, event)
    return target_of(call.daemon, target, state)


def _refuse_admin_pause(call: Call, state: State) -> None:
    """Raises RequestRefusedError (403) if an operator would change the pause of an admin."""
    if state.admin_pause and not call.by_admin:
        detail = f"{state.target} was paused by an admin, who must resume it; the token's role is operator."
        raise RequestRefusedError(403, detail, kind="admin-pause")


async def _resume(call: Call) -> TargetDocument:
    target = find_target(call)
    state = target.state
    _refuse_admin_pause(call, state)
    if state.paused:
        refuse_over_budget(call, state)
        event = Resumed(at=call.daemon.now(), actor=call.actor, by_admin=call.by_admin)
        state = await call.submit(target, event)
    return target_of(call.daemon, target, state)


async def _ask(call: Call) -> OperationResult:
    return await _propose(call, find_target(call), call.parsed_as(ChangeBody))


async def _undo(call: Call) -> OperationResult:
    """Propose the values from before the last promotion; the same guards hold as for any other proposal."""
    body, target = call.parsed_as(UndoBody), find_target(call)
    state = call.accepted or target.state
    if state.phase not in IDLE:
        raise RequestRefusedError(409, _why_busy(state), kind="busy")
    undo = undo_last(state)
    if undo.why or undo.promoted_at is None:
        raise RequestRefusedError(409, f"Nothing was proposed: {undo.why}.", kind="nothing-to-undo")
    reason = f"undoes the promotion at {undo.promoted_at:%Y-%m-%d %H:%M} UTC: {body.reason}"
    change = ChangeBody.model_construct(
        to=dict(undo.to),
        reason=reason,
        accept_different_answers=body.accept_different_answers,
        after="",
    )
    return await _propose(call, target, change)


async def _propose(call: Call, target: TargetView, body: ChangeBody) -> OperationResult:
    before = target.state
    wanted: dict[str, Value] = dict(body.to)
    refuse_upgrade(call, wanted)
    refuse_if_full(call)
    refuse_over_budget(call, before)
    refuse_too_many_open(call, before, wanted)
    _refuse_order(call, before, body.after)
    event = ChangeAsked(
        at=call.daemon.now(),
        actor=call.actor,
        to=wanted,
        reason=body.reason,
        accepts_other_answers=body.accept_different_answers,
        after=body.after,
    )
    state = await call.submit(target, event)
    if state.phase not in IDLE:
        raise RequestRefusedError(409, _why_busy(state), kind="busy")
    made = next(iter(state.suggestions.pending), None)
    if made is None or not set(made.proposal.to) - {SERVED_NAME} <= set(wanted):
        raise _refused(state)
    is_new = call.accepted is not None or before.suggestions.find_pending(made.id) is None
    if not is_new and dict(made.proposal.to) != wanted:  # an older suggestion: this one was not accepted
        raise _refused(state)
    headers = {"Location": f"/v1/suggestions/{made.id}", **tag_of(made)}
    return OperationResult(value=suggestion_of(made, state), headers=headers)


def _refuse_order(call: Call, state: State, after: str) -> None:
    """Raises RequestRefusedError if the change cannot come after this suggestion."""
    if not after:
        return
    ahead = find_target(call, target_of_suggestion(after)).state
    if ahead.target == state.target:
        detail = f"{after} is of {state.target} itself: name a suggestion of another target in `after`."
        raise RequestRefusedError(409, detail, kind="not-after")
    if why := find_end(ahead, after):
        raise RequestRefusedError(409, f"Nothing can come after it: {why}.", kind="not-after")


def _why_busy(state: State) -> str:
    """Why this phase takes no change, and what to do."""
    if state.phase is Phase.HALTED:
        return f"The target is halted, so no change can be proposed: {state.note}"
    if state.phase is Phase.RESTORING or state.rollout is None:
        return f"A server that exited is being replaced ({state.note}); propose the change when it serves."
    return (
        f"The rollout {state.rollout.id} is in the phase {state.phase.value}, and a target has one change"
        " at a time: propose the change when it has ended."
    )


def _refused(state: State) -> RequestRefusedError:
    return RequestRefusedError(
        409,
        f"The guard refused the change: {state.note or 'it gave no reason'}",
        kind="refused-by-guard",
    )


UNKNOWN = {404: "No such target."}
PROPOSED = {"ETag": "its digest, once it has one", "Location": "the suggestion's address"}
NOT_BY_THIS_CALLER = (
    "A page of another site sends the request, the token's role is too low, or it is no admin's and the "
    "change is an upgrade."
)

OPERATIONS = (
    Operation(
        name="listTargets",
        method="GET",
        path="/v1/targets",
        role="viewer",
        summary="The status of all targets",
        handler=_list,
        response=TargetsDocument,
    ),
    Operation(
        name="showTarget",
        method="GET",
        path="/v1/targets/{name}",
        role="viewer",
        summary="The status of one target",
        handler=_show,
        response=TargetDocument,
        errors=UNKNOWN,
    ),
    Operation(
        name="pauseTarget",
        method="POST",
        path="/v1/targets/{name}/pause",
        role="operator",
        summary="Start nothing new on this target; can be repeated. An admin's pause is ended by an admin",
        handler=_pause,
        response=TargetDocument,
        query=PauseQuery,
        errors={**UNKNOWN, 409: "Maintenance cannot begin while a rollout runs."},
    ),
    Operation(
        name="resumeTarget",
        method="POST",
        path="/v1/targets/{name}/resume",
        role="operator",
        summary="End a pause; can be repeated",
        handler=_resume,
        response=TargetDocument,
        errors={
            **UNKNOWN,
            403: "A page of another site sends the request, the role is too low, or an admin paused it.",
        },
    ),
    Operation(
        name="askForChange",
        method="POST",
        path="/v1/targets/{name}/suggestions",
        role="operator",
        summary="Propose a change; after a check it is a suggestion that needs approval",
        handler=_ask,
        response=SuggestionDocument,
        status=201,
        body=ChangeBody,
        headers=PROPOSED,
        errors={
            **UNKNOWN,
            403: NOT_BY_THIS_CALLER,
            409: "The guard refused the change, or a rollout runs; `detail` has the reason.",
        },
    ),
    Operation(
        name="undoPromotion",
        method="POST",
        path="/v1/targets/{name}/undo",
        role="operator",
        summary="Propose the values before the last promotion; after a check it is a suggestion that needs "
        "approval",
        handler=_undo,
        response=SuggestionDocument,
        status=201,
        body=UndoBody,
        headers=PROPOSED,
        errors={
            **UNKNOWN,
            403: NOT_BY_THIS_CALLER,
            409: "Nothing was promoted, its values are no longer in force, the guard refused the way back, "
            "or a rollout runs; `detail` has the reason.",
        },
    ),
)
