"""Suggestions: list, show, approve and deny."""

import hmac
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from flettner.agent.api.admission import refuse_upgrade
from flettner.agent.api.documents import SuggestionDocument, suggestion_of, tag_of
from flettner.agent.api.operations import Call, Operation, OperationResult
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.request_parsing import Comment, Reason
from flettner.agent.api.routes.targets import find_target
from flettner.agent.domain.events import Approved, Denied
from flettner.agent.domain.state import State
from flettner.agent.domain.statuses import SuggestionStatus
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.open_suggestions import barred_approver

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class ApprovalBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    digest: Digest = Field(description="the digest of the suggestion as it was shown")
    comment: Comment = ""


class DenialBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason


class SuggestionsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    target: str | None = None
    status: SuggestionStatus | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class SuggestionsDocument(BaseModel):
    suggestions: list[SuggestionDocument]


def find_suggestion(call: Call, name: str) -> Suggestion:
    """Raises RequestRefusedError (404)."""
    for suggestion in call.daemon.suggestions():
        if suggestion.id == name:
            return suggestion
    raise RequestRefusedError(
        404,
        f"There is no suggestion {name[:100]!r}; GET /v1/suggestions lists them.",
        kind="no-such-suggestion",
    )


def _shown(call: Call, suggestion: Suggestion) -> OperationResult:
    target = call.daemon.targets().get(suggestion.target)
    shown = suggestion_of(
        suggestion, call.state(suggestion.target), target.search_result if target is not None else None
    )
    return OperationResult(value=shown, headers=tag_of(suggestion))


def _latest(call: Call, state: State, suggestion: Suggestion) -> Suggestion:
    """The suggestion in the state that a decision led to."""
    carried_out = (state.rollout.suggestion,) if state.rollout is not None else ()
    listed = (*state.suggestions.pending, *state.suggestions.ended, *carried_out)
    return next((other for other in listed if other.id == suggestion.id), None) or find_suggestion(
        call, suggestion.id
    )


async def _list(call: Call) -> SuggestionsDocument:
    query, targets = call.parsed_as(SuggestionsQuery), call.daemon.targets()
    chosen = [
        suggestion_of(suggestion, target.state, target.search_result) if target else suggestion_of(suggestion)
        for suggestion in call.daemon.suggestions()
        for target in (targets.get(suggestion.target),)
        if query.target in {None, suggestion.target} and query.status in {None, suggestion.status}
    ]
    chosen.sort(key=_order)
    return SuggestionsDocument(suggestions=chosen[: query.limit])


def _order(document: SuggestionDocument) -> tuple[bool, str, int]:
    """Those that need a decision come first, by target and rank."""
    return document.rank is None, document.target if document.rank else "", document.rank or 0


async def _show(call: Call) -> OperationResult:
    return _shown(call, find_suggestion(call, call.part("id")))


ENDED_WITH_NOTE = ("refused", "superseded", "withdrawn")
"""Their last note says why (flettner.agent.machine.open_suggestions)."""


def _refuse_ended(call: Call, suggestion: Suggestion) -> None:
    over = suggestion.status == "open" and call.daemon.now() >= suggestion.expires_at
    if over or suggestion.status == "expired":
        raise RequestRefusedError(
            410,
            f"The suggestion expired at {suggestion.expires_at.isoformat()}; a change that is still useful"
            " is suggested again with new numbers.",
            kind="expired",
        )
    if suggestion.status not in {"open", "checking"}:
        by = f" by {suggestion.decided_by}" if suggestion.decided_by else ""
        why = suggestion.notes[-1] if suggestion.notes and suggestion.status in ENDED_WITH_NOTE else ""
        because = f": {why.rstrip('.')}" if why else ""
        detail = f"The suggestion is not open: it is {suggestion.status}{by}{because}."
        raise RequestRefusedError(409, detail, kind="not-open")


async def _approve(call: Call) -> OperationResult:
    body = call.parsed_as(ApprovalBody)
    return _shown(call, await approve_suggestion(call, call.part("id"), body.digest, body.comment))


async def approve_suggestion(call: Call, name: str, digest: str, comment: str) -> Suggestion:
    """Approve the version that the digest names. A refusal never contains the current digest: a client could
    send it back without anyone reviewing the change."""
    suggestion = find_suggestion(call, name)
    refuse_upgrade(call, suggestion.proposal.to)
    same = hmac.compare_digest(digest, suggestion.digest)
    if same and (suggestion.status == "approved" or suggestion.approved_by):
        return suggestion
    _refuse_ended(call, suggestion)
    if suggestion.status == "checking":
        raise RequestRefusedError(
            409,
            "The engine is still checking the suggestion. Review it when its status is open, then"
            " approve that version.",
            kind="checking",
        )
    if not same:
        since = suggestion.refreshed_at
        latest = f" Its latest refresh, at {since:%H:%M:%S} UTC: {suggestion.changed}." if since else ""
        raise RequestRefusedError(
            409,
            f"The digest does not match: the suggestion has changed since it was shown.{latest}"
            " Review it again, then approve that version.",
            kind="digest-differs",
        )
    target = find_target(call, suggestion.target)
    state = target.state
    if state.mode == "advise":
        detail = 'The mode is advise, so nothing is changed; set [agent] mode = "approve" and restart.'
        raise RequestRefusedError(409, detail, kind="mode-is-advise")
    if owner := suggestion.preflight.owner:
        detail = f"{owner} writes the manifest: commit the change there (`flettner suggestions ID --patch`)."
        raise RequestRefusedError(409, detail, kind="commit-it")
    if call.actor == barred_approver(state, suggestion):
        raise RequestRefusedError(
            403,
            f"{call.actor} proposed this change, so another operator must approve it: [agent] approval is"
            ' "other".',
            kind="own-proposal",
        )
    if state.paused:
        detail = f"The target is paused; `flettner resume {suggestion.target}` first."
        raise RequestRefusedError(409, detail, kind="paused")
    event = Approved(
        at=call.daemon.now(),
        actor=call.actor,
        suggestion=suggestion.id,
        digest=digest,
        comment=comment,
    )
    state = await call.submit(target, event)
    now = _latest(call, state, suggestion)
    waits = now.status == "open" and bool(now.approved_by)
    if not (now.status == "approved" or waits) or now.digest != digest:
        raise RequestRefusedError(
            409, f"The approval was not accepted: {state.note or now.status}", kind="not-taken"
        )
    return now


async def _deny(call: Call) -> OperationResult:
    reason = call.parsed_as(DenialBody).reason
    return _shown(call, await deny_suggestion(call, call.part("id"), reason))


async def deny_suggestion(call: Call, name: str, reason: str) -> Suggestion:
    suggestion = find_suggestion(call, name)
    if suggestion.status == "denied":
        return suggestion
    _refuse_ended(call, suggestion)
    event = Denied(at=call.daemon.now(), actor=call.actor, suggestion=suggestion.id, reason=reason)
    state = await call.submit(find_target(call, suggestion.target), event)
    now = _latest(call, state, suggestion)
    if now.status != "denied":
        raise RequestRefusedError(
            409, f"The denial was not accepted: {state.note or now.status}", kind="not-taken"
        )
    return now


UNKNOWN = {404: "No such suggestion."}
TAG = {"ETag": "the suggestion's digest, once it has one"}

OPERATIONS = (
    Operation(
        name="listSuggestions",
        method="GET",
        path="/v1/suggestions",
        role="viewer",
        summary="Suggestions: the open ones first, by rank, then the others, newest first",
        handler=_list,
        response=SuggestionsDocument,
        query=SuggestionsQuery,
    ),
    Operation(
        name="showSuggestion",
        method="GET",
        path="/v1/suggestions/{id}",
        role="viewer",
        summary="One suggestion; its ETag is the digest that an approval must name",
        handler=_show,
        response=SuggestionDocument,
        headers=TAG,
        errors=UNKNOWN,
    ),
    Operation(
        name="approveSuggestion",
        method="POST",
        path="/v1/suggestions/{id}/approve",
        role="operator",
        summary="Approve the version with this digest; can be repeated",
        handler=_approve,
        response=SuggestionDocument,
        body=ApprovalBody,
        headers=TAG,
        errors={
            **UNKNOWN,
            403: "A page of another site sends the request, the token's role is too low, it is no admin's "
            'and the change is an upgrade, or the caller proposed it and [agent] approval is "other".',
            409: "It has changed, is not open or is still being checked, the mode is advise, or the "
            "target is paused.",
            410: "It has expired.",
        },
    ),
    Operation(
        name="denySuggestion",
        method="POST",
        path="/v1/suggestions/{id}/deny",
        role="operator",
        summary="Deny a suggestion, with a reason; can be repeated",
        handler=_deny,
        response=SuggestionDocument,
        body=DenialBody,
        headers=TAG,
        errors={**UNKNOWN, 409: "It is not open.", 410: "It has expired."},
    ),
)
