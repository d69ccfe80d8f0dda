"""Decisions that come from receivers of notices, such as a button in Slack, signed by the service."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import aiohttp
import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from flettner.agent.api.decision_sources import (
    SHORT_DIGEST,
    DecisionReply,
    DecisionSource,
    ForgedDecisionError,
    LinkedDecisionSource,
    MisdirectedDecisionError,
    ReceivedDecision,
    SignedRequest,
)
from flettner.agent.api.html_pages import answer_page
from flettner.agent.api.middleware import ACCESS_CONTROL, DECISIONS
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.request_parsing import read_body
from flettner.agent.api.routes.suggestions import approve_suggestion, deny_suggestion, find_suggestion
from flettner.agent.domain.errors import NoticeError
from flettner.agent.domain.ports import Now
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.notify.delivery import NoticeDelivery, deliver
from flettner.agent.notify.rules import OutgoingNotice, decided_notice, waiting_notice

REMEMBERED = timedelta(days=2)  # longer than a signature may be old
POST_WITHIN_S = 10.0
OVER = ("expired", "not-open", "no-such-suggestion")  # kinds of refusals after which nothing can be decided
ReadDecision = Callable[[datetime], ReceivedDecision]
"""Raises as DecisionSource.read_decision."""
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ReceivedDecisions:
    """Ids of decisions, so that a repeat is refused, and the requests to services that are under way."""

    now: Now
    _seen: dict[str, datetime] = field(default_factory=dict)  # oldest first
    _posting: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, id_: str) -> bool:
        """Whether the id is new."""
        at = self.now()
        for old in [each for each, seen in self._seen.items() if at - seen > REMEMBERED]:
            del self._seen[old]
        is_new = id_ not in self._seen
        self._seen.setdefault(id_, at)
        return is_new

    def remove(self, id_: str) -> None:
        self._seen.pop(id_, None)

    def post(self, post: OutgoingNotice, receiver: str) -> None:
        """Send the request after the response, for which the service waits some seconds only."""
        task = asyncio.create_task(_post(post, receiver))
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._posting)


RECEIVED: web.AppKey[ReceivedDecisions] = web.AppKey("received_decisions", ReceivedDecisions)


async def _post(post: OutgoingNotice, receiver: str) -> None:
    timeout = aiohttp.ClientTimeout(total=POST_WITHIN_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await deliver(session, post)
    except NoticeError as error:
        log.warning("decision.message_not_changed", notifier=receiver, why=str(error))


class LinkQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    link: str = Field(default="", max_length=2000, description="as it was sent to a person")


async def _show(call: Call) -> web.Response:
    """The page of a link, which decides nothing and uses up nothing: programs that scan mails open links."""
    delivery, source = _find_source(call, call.part("receiver"))
    if not isinstance(source, LinkedDecisionSource):
        raise _forged(call, "a link of a receiver that sends none")
    link = call.parsed_as(LinkQuery).link
    return await _answer(call, delivery, source, lambda at: source.read_link(link, at, delivery.decisions))


async def _receive(call: Call) -> web.Response:
    body = await read_body(call.request)
    try:
        return await _receive_by(call, call.part("receiver"), body)
    except MisdirectedDecisionError as genuine:
        return await _receive_by(call, genuine.receiver, body)


async def _receive_by(call: Call, receiver: str, body: bytes) -> web.Response:
    """Raises MisdirectedDecisionError."""
    delivery, source = _find_source(call, receiver)

    def read(at: datetime) -> ReceivedDecision:
        headers = call.request.headers
        request = SignedRequest(headers=headers, body=body, at=at, decisions=delivery.decisions)
        return source.read_decision(request)

    return await _answer(call, delivery, source, read)


def _find_source(call: Call, receiver: str) -> tuple[NoticeDelivery, DecisionSource]:
    delivery = call.daemon.receivers().get(receiver)
    source: object = delivery.notifier if delivery is not None else None
    if delivery is None or not isinstance(source, DecisionSource) or not source.takes_decisions:
        raise _forged(call, "a decision for a receiver that takes none")
    return delivery, source


async def _answer(
    call: Call, delivery: NoticeDelivery, source: DecisionSource, read: ReadDecision
) -> web.Response:
    try:
        return await _take(call, delivery, source, read)
    except RequestRefusedError as refusal:
        if not isinstance(source, LinkedDecisionSource):
            raise
        return answer_page("Not decided", refusal.problem.detail, status=refusal.problem.status)


async def _take(
    call: Call, delivery: NoticeDelivery, source: DecisionSource, read: ReadDecision
) -> web.Response:
    received = call.request.app[RECEIVED]
    try:
        decision = read(received.now())
    except ForgedDecisionError as error:
        raise _forged(call, f"a decision by {delivery.name}: {error}") from None
    except NoticeError as error:
        raise RequestRefusedError(503, f"The signature cannot be checked: {error}") from None
    if decision.person is not None:
        call.request.app[ACCESS_CONTROL].spend(decision.person)
    if decision.id and not received.add(decision.id):
        call.request.app[ACCESS_CONTROL].report_failure(call.request, f"a repeat by {decision.sender}")
        raise RequestRefusedError(409, "This decision was received before; make it again.", kind="repeated")
    reply = await _decide(call, delivery, decision)
    if decision.link and not reply.ends:
        received.remove(decision.id)  # nothing is decided: the person may press the same button later
    answer = source.answer(decision, reply)
    if answer.post is not None:
        received.post(answer.post, delivery.name)
    return web.Response(body=answer.body, content_type=answer.media, headers=answer.headers)


def _forged(call: Call, why: str) -> RequestRefusedError:
    call.request.app[ACCESS_CONTROL].report_failure(call.request, why)
    return RequestRefusedError(
        401,
        "The request is not signed as one of this receiver's service, or it is older than the signature may"
        " be; the audit names the reason.",
        kind="not-signed",
    )


async def _decide(call: Call, delivery: NoticeDelivery, decision: ReceivedDecision) -> DecisionReply:
    person = decision.person
    if person is None or not person.allows("operator"):
        call.request.app[ACCESS_CONTROL].report_failure(call.request, f"{decision.sender}, without a role")
        return DecisionReply(
            text=f"{decision.sender} may not decide here: the receiver's `people` in flettner's config name"
            " who may."
        )
    call = replace(call, holder=person)
    try:
        suggestion = await _carry_out(call, decision)
    except RequestRefusedError as refusal:
        return _refused(call, delivery, decision, refusal)
    if decision.verb == "show":
        return _shown(call, delivery, suggestion, "")
    if suggestion.approved_by and suggestion.status == "open":
        return DecisionReply(
            text=f"{suggestion.id} is approved by {suggestion.approved_by}, and waits.", ends=True
        )
    return DecisionReply(text=_outcome(call, delivery, suggestion), ends=True)


async def _carry_out(call: Call, decision: ReceivedDecision) -> Suggestion:
    if decision.verb == "show":
        return find_suggestion(call, decision.suggestion)
    if decision.verb == "deny":
        return await deny_suggestion(call, decision.suggestion, f"by {decision.sender}, without a reason")
    current, digest = find_suggestion(call, decision.suggestion).digest, decision.digest
    if len(digest) >= SHORT_DIGEST and current.startswith(digest):
        digest = current
    return await approve_suggestion(call, decision.suggestion, digest, f"by {decision.sender}")


def _refused(
    call: Call, delivery: NoticeDelivery, decision: ReceivedDecision, refusal: RequestRefusedError
) -> DecisionReply:
    kind, text = refusal.problem.type.rpartition(":")[2], refusal.problem.detail
    if kind == "digest-differs":
        return _shown(call, delivery, find_suggestion(call, decision.suggestion), text)
    return DecisionReply(text=text, ends=kind in OVER)


def _shown(call: Call, delivery: NoticeDelivery, suggestion: Suggestion, text: str) -> DecisionReply:
    state = call.state(suggestion.target)
    if state is None or suggestion.status != "open":
        return DecisionReply(text=_outcome(call, delivery, suggestion), ends=True)
    notice = delivery.finalize(waiting_notice(state, suggestion, call.daemon.now()))
    return DecisionReply(text=text or notice.title, notice=notice)


def _outcome(call: Call, delivery: NoticeDelivery, suggestion: Suggestion) -> str:
    return delivery.finalize(decided_notice(suggestion, call.daemon.now())).title


OPERATIONS = (
    Operation(
        name="showDecision",
        method="GET",
        path=f"{DECISIONS}{{receiver}}",
        role=None,
        summary="The page on which a person decides, to whom a receiver of notices sent a link",
        handler=_show,
        response=str,
        media="text/html",
        query=LinkQuery,
        errors={
            400: "The address is longer than 8 KiB.",
            401: "The link is not signed by flettner, or is too old.",
            503: "It cannot be checked now.",
        },
    ),
    Operation(
        name="receiveDecision",
        method="POST",
        path=f"{DECISIONS}{{receiver}}",
        role=None,
        summary="A decision of a person, sent and signed by the service of a receiver of notices",
        handler=_receive,
        response=str,
        media="text/plain",
        errors={
            400: "The body ended early or is badly framed.",
            401: "The signature is not the service's, or is too old.",
            408: "The body did not arrive in time.",
            409: "The same decision was received before.",
            413: "The body is larger than 64 KiB.",
            415: "The body is compressed.",
        },
    ),
)
