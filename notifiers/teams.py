"""A channel in Microsoft Teams, through a Workflows webhook: an Adaptive Card. An answer there can decide.

https://support.microsoft.com/office/8ae491c7-0394-4861-ba59-055e33f75498: "Post to a channel when a webhook
request is received". Texts are RichTextBlocks, which do not render Markdown, so a server's text makes no
link. Decisions come by an outgoing webhook, which people mention; buttons would take a bot in Azure:
https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/add-outgoing-webhook
"""

import base64
import binascii
import hashlib
import hmac
import html
import json
import re
import socket
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from flettner.agent.api.decision_sources import (
    SHORT_DIGEST,
    DecisionAnswer,
    DecisionReply,
    ForgedDecisionError,
    ReceivedDecision,
    SignedRequest,
)
from flettner.agent.api.people import People, check_people, find_person
from flettner.agent.domain.errors import NoticeError
from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import UrlReceiver, read_secret
from flettner.primitives.bounded import parse_json

COLOURS = {"info": "accent", "warning": "warning", "critical": "attention"}
RESOLVED = "good"
_USER = re.compile(r"[0-9A-Za-z-]{1,40}")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{16,64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Teams(UrlReceiver):
    security_token_file: str = ""  # of the outgoing webhook by which people decide
    people: People = field(default_factory=dict)  # by their object id in Entra

    def __post_init__(self) -> None:
        UrlReceiver.__post_init__(self)
        check_people(self.people)
        if bool(self.security_token_file) != bool(self.people):
            raise ValueError("security_token_file and people need each other: what Teams signs, and who may")

    @property
    def takes_decisions(self) -> bool:
        return bool(self.security_token_file)

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        del at
        if self.takes_decisions:
            self._key()  # found unreadable now, not when a person answers
        colour = RESOLVED if notice.ends else COLOURS[notice.severity]
        lines = [text_block(notice.title, weight="bolder", color=colour)]
        lines += [text_block(notice.text)] if notice.text else []
        footer = (
            f"{socket.gethostname()} · {notice.severity} · {notice.kind} · {notice.at:%Y-%m-%d %H:%M} UTC"
        )
        lines += [text_block(footer, isSubtle=True)]
        if self.takes_decisions and notice.digest:
            lines += [text_block(f"To decide, mention flettner here: {_commands(notice)}")]
        open_action = {"type": "Action.OpenUrl", "title": "Open in flettner", "url": notice.link}
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": lines,
            "actions": [open_action] if notice.link else [],
        }
        attachment = {
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": card,
        }
        body = {"type": "message", "attachments": [attachment]}
        return OutgoingNotice(url=self.read_url(), body=json.dumps(body).encode())

    def read_decision(self, request: SignedRequest) -> ReceivedDecision:
        signature = request.header("Authorization")
        mac = hmac.new(self._key(), request.body, hashlib.sha256).digest()
        if not hmac.compare_digest(f"HMAC {base64.b64encode(mac).decode()}".encode(), signature.encode()):
            raise ForgedDecisionError("the signature is not that of the outgoing webhook in Teams")
        try:
            message = parse_json(request.body)
            sent = datetime.fromisoformat(message["timestamp"]).timestamp()
            user, words = str(message["from"]["aadObjectId"]), _words(str(message["text"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ForgedDecisionError("it is not a message of a person in Teams") from error
        request.check_age(sent, "message")
        verb, suggestion, digest = _read_command(words)
        return ReceivedDecision(
            id="" if verb == "show" else signature,
            verb=verb,
            suggestion=suggestion,
            digest=digest,
            sender=f"Teams user {user if _USER.fullmatch(user) else 'without an id'}",
            person=find_person(self.people, user),
        )

    def answer(self, decision: ReceivedDecision, reply: DecisionReply) -> DecisionAnswer:
        del decision
        text = reply.text
        if reply.notice is not None:
            title = "" if text == reply.notice.title else reply.notice.title
            text = "\n\n".join(filter(None, (text, title, reply.notice.text, _commands(reply.notice))))
        message = {"type": "message", "textFormat": "plain", "text": text}
        return DecisionAnswer(body=json.dumps(message).encode(), media="application/json")

    def _key(self) -> bytes:
        try:
            return base64.b64decode(read_secret(self.security_token_file), validate=True)
        except binascii.Error:
            why = f"{self.security_token_file}: must hold the security token that Teams showed, in base64"
            raise NoticeError(why, passes=True) from None


def _commands(notice: Notice) -> str:
    digest = notice.digest[:SHORT_DIGEST].removeprefix("sha256:")
    return f"approve {notice.suggestion} {digest}, or deny {notice.suggestion}"


def _words(text: str) -> list[str]:
    """The words of a message, which is HTML, without its tags' names."""
    return html.unescape(text.replace("<", " <").replace(">", "> ")).split()


def _read_command(words: list[str]) -> tuple[Literal["approve", "deny", "show"], str, str]:
    """What is asked for; `show` if it is neither an approval nor a denial."""
    for at, word in enumerate(words):
        if word.lower() in {"approve", "deny", "show"}:
            suggestion, digest = (*words[at + 1 : at + 3], "", "")[:2]
            match = _DIGEST.fullmatch(digest)
            verb: Literal["approve", "deny"] = "approve" if word.lower() == "approve" else "deny"
            return (
                "show" if word.lower() == "show" else verb,
                suggestion,
                f"sha256:{match[1]}" if match else "",
            )
    return "show", words[-1] if words else "", ""


def text_block(text: str, **style: Any) -> dict[str, Any]:  # noqa: ANN401 - any member of the schema
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


plugin = Teams
