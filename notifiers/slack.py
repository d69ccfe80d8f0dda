"""A channel in Slack or Mattermost, through an incoming webhook; in Slack people can approve and deny there.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and
https://developers.mattermost.com/integrate/reference/message-attachments/: both take `attachments`.
Buttons: https://docs.slack.dev/interactivity/handling-user-interaction; how Slack signs what it sends:
https://docs.slack.dev/authentication/verifying-requests-from-slack.
"""

import hashlib
import hmac
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from flettner.agent.api.decision_sources import (
    DecisionAnswer,
    DecisionReply,
    ForgedDecisionError,
    MisdirectedDecisionError,
    ReceivedDecision,
    SignedRequest,
)
from flettner.agent.api.people import People, check_people, find_person
from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import UrlReceiver, read_secret
from flettner.primitives.bounded import parse_json

COLOURS = {"info": "#2f81f7", "warning": "#d29922", "critical": "#cf222e"}
RESOLVED = "#1a7f37"
_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "@": "@\u2060",
}  # a server's text must not mention @all
_VERBS: Mapping[str, Literal["approve", "deny"]] = {"flettner_approve": "approve", "flettner_deny": "deny"}
_USER = re.compile(r"[A-Z0-9]{1,30}")
_VALUE = re.compile(r"\A(\S+) (\S+) (sha256:[0-9a-f]{64}) ([0-9a-f]{64})")
"""Of a button: receiver, suggestion, digest, and our own signature, which another sender cannot make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack(UrlReceiver):
    signing_secret_file: str = ""  # of the Slack app: suggestions get the buttons Approve and Deny
    people: People = field(default_factory=dict)

    def __post_init__(self) -> None:
        UrlReceiver.__post_init__(self)
        check_people(self.people)
        if bool(self.signing_secret_file) != bool(self.people):
            raise ValueError("signing_secret_file and people need each other: what Slack signs, and who may")

    @property
    def takes_decisions(self) -> bool:
        return bool(self.signing_secret_file)

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        del at
        if self.takes_decisions:
            self._key()  # found unreadable now, not when a button is pressed
        asks = self.takes_decisions and notice.digest
        message = self._ask(notice) if asks else {"attachments": [_attachment(notice)]}
        return OutgoingNotice(url=self.read_url(), body=json.dumps(message).encode())

    def read_decision(self, request: SignedRequest) -> ReceivedDecision:
        key = self._key()
        stamp, signature = (request.header(f"X-Slack-{name}") for name in ("Request-Timestamp", "Signature"))
        expected = f"v0={_sign(key, b'v0:' + stamp.encode() + b':' + request.body)}"
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise ForgedDecisionError("the signature is not Slack's")
        request.check_age(int(stamp) if stamp.isdecimal() else 0, "signature")
        try:
            press = parse_json(parse_qs(request.body.decode())["payload"][0])
            (action,) = press["actions"]
            user, value = str(press["user"]["id"]), _VALUE.fullmatch(str(action["value"]))
            verb = _VERBS[action["action_id"]]
            reply_to = str(press["response_url"])
        except (ValueError, KeyError, TypeError) as error:
            raise ForgedDecisionError("it is not the press of one of flettner's buttons") from error
        if value is None:
            raise ForgedDecisionError("the button is not one of flettner's")
        receiver, suggestion, digest, mac = value.groups()
        here, _, own = request.decisions.rpartition("/")
        if not hmac.compare_digest(mac, _sign_button(key, f"{here}/{receiver}", suggestion, digest)):
            raise ForgedDecisionError("the button is not one that this flettner signed")
        if receiver != own:
            raise MisdirectedDecisionError(unquote(receiver))
        return ReceivedDecision(
            id=signature,
            verb=verb,
            suggestion=suggestion,
            digest=digest,
            sender=f"Slack user {user if _USER.fullmatch(user) else 'without an id'}",
            person=find_person(self.people, user),
            reply_to=reply_to,
        )

    def answer(self, decision: ReceivedDecision, reply: DecisionReply) -> DecisionAnswer:
        """Replace the message by the outcome, or by the present version; else answer its reader alone."""
        text = {"type": "section", "text": _plain(reply.text)}
        if reply.notice is not None:
            asked = self._ask(reply.notice)
            message: dict[str, Any] = {**asked, "blocks": [text, *asked["blocks"]], "replace_original": True}
        else:
            message = {"text": escape(reply.text), "blocks": [text]}
            message |= {"replace_original": True} if reply.ends else {"response_type": "ephemeral"}
        if urlsplit(decision.reply_to)[:2] != urlsplit(self.read_url())[:2]:
            return DecisionAnswer()  # as the webhook: to no other host
        return DecisionAnswer(post=OutgoingNotice(url=decision.reply_to, body=json.dumps(message).encode()))

    def _ask(self, notice: Notice) -> dict[str, Any]:
        """The message with its buttons. Texts are plain: a server's text makes neither link nor mention."""
        mac = _sign_button(self._key(), notice.decisions, notice.suggestion, notice.digest)
        receiver = notice.decisions.rpartition("/")[2]
        value = f"{receiver} {notice.suggestion} {notice.digest} {mac}"
        footer = f"{notice.digest[:23]} · {socket.gethostname()}"
        link = [{"type": "mrkdwn", "text": f"<{notice.link}|Open in flettner>"}] if notice.link else []
        return {
            "text": escape(notice.title),
            "blocks": [
                {"type": "section", "text": _plain(notice.title)},
                {"type": "section", "text": _plain(notice.text or notice.title)},
                {"type": "context", "elements": [*link, _plain(footer)]},
                {"type": "actions", "elements": [_button(verb, value) for verb in ("Approve", "Deny")]},
            ],
        }

    def _key(self) -> bytes:
        return read_secret(self.signing_secret_file).encode()


def _attachment(notice: Notice) -> Mapping[str, object]:
    title = escape(notice.title)
    return {
        "color": RESOLVED if notice.ends else COLOURS[notice.severity],
        "fallback": title,
        "title": title,
        "text": escape(notice.text),
        "mrkdwn_in": [],
        "footer": f"flettner · {socket.gethostname()} · {notice.severity} · {notice.kind}",
        "ts": int(notice.at.timestamp()),
        **({"title_link": notice.link} if notice.link else {}),
    }


def _button(verb: str, value: str) -> Mapping[str, object]:
    return {
        "type": "button",
        "action_id": f"flettner_{verb.lower()}",
        "text": _plain(verb),
        "style": "primary" if verb == "Approve" else "danger",
        "value": value,
        "confirm": {
            "title": _plain(f"{verb} the change?"),
            "text": _plain(
                "It is carried out as this message shows it." if verb == "Approve" else "It ends."
            ),
            "confirm": _plain(verb),
            "deny": _plain("Back"),
        },
    }


def _plain(text: str) -> Mapping[str, object]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _sign(key: bytes, message: bytes) -> str:
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _sign_button(key: bytes, decisions: str, suggestion: str, digest: str) -> str:
    """`decisions`: where the decisions of the receiver arrive that sends the button."""
    return _sign(key, f"flettner button to {decisions}: {suggestion} {digest}".encode())


def escape(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


plugin = Slack
