"""Stand-ins of the services that send decisions to flettner, signed as their documentation describes it."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from flettner.agent.config.listen import Role
from flettner.agent.notify.delivery import NoticeDelivery
from flettner.agent.notify.rules import Notice, Notifier
from flettner.notifiers.mail import Mail
from flettner.notifiers.slack import Slack
from flettner.notifiers.teams import Teams
from tests.support.fake_daemon_view import NOON

KEY = "8f742231b10e8888abcd99yyyzzz85a5"
PEOPLE: Mapping[str, tuple[str, Role]] = {
    "U0ALICE": ("operator alice", "operator"),
    "U0BOB": ("operator bob", "operator"),
    "U0VERA": ("viewer vera", "viewer"),
    "U0ADA": ("admin ada", "admin"),
}
SignedCall = tuple[Mapping[str, str], bytes]


def deliver_by(notifier: Notifier, home: Path, name: str = "ops") -> NoticeDelivery:
    """A receiver that asks for decisions, without a journal to follow."""
    return NoticeDelivery(
        name=name,
        notifier=notifier,
        min_severity="info",
        file=home / "ops.json",
        console="https://flettner.example.org",
        now=lambda: NOON,
        follow=None,
        head=0,
        states=dict,
        writable=lambda: True,
        full=lambda: False,
    )


class DecisionService(Protocol):
    """`user`: an id of PEOPLE, or another one; `key`: with which the request is signed.

    `notice`: as the receiver's delivery finalizes it.
    """

    def notifier(self, here: Path) -> Notifier: ...

    def call(
        self, verb: str, notice: Notice, *, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY
    ) -> SignedCall: ...


@dataclass
class SlackService:
    """A button of the message for the notice is pressed."""

    button_key: str = KEY
    reply_to: str = "http://127.0.0.1:1/actions/T0/1/x"

    def notifier(self, here: Path, url: str = "http://127.0.0.1:1/services/T0/B0/x") -> Slack:
        (here / "slack.secret").write_text(self.button_key)
        return Slack(url=url, signing_secret_file=str(here / "slack.secret"), people=PEOPLE)

    def call(
        self, verb: str, notice: Notice, *, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY
    ) -> SignedCall:
        named = f"flettner button to {notice.decisions}: {notice.suggestion} {notice.digest}".encode()
        signed = hmac.new(self.button_key.encode(), named, hashlib.sha256).hexdigest()
        receiver = notice.decisions.rpartition("/")[2]
        value = f"{receiver} {notice.suggestion} {notice.digest} {signed}"
        return self.press(verb, value, user, at, key)

    def press(
        self, verb: str, value: str, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY
    ) -> SignedCall:
        """`value`: of the button in the message."""
        button = {
            "type": "button",
            "action_id": f"flettner_{verb}",
            "block_id": "x1",
            "value": value,
            "action_ts": f"{at.timestamp():f}",
        }
        payload = {
            "type": "block_actions",
            "user": {"id": user, "username": "someone", "team_id": "T0"},
            "team": {"id": "T0", "domain": "example"},
            "container": {"type": "message", "message_ts": "1.2", "channel_id": "C0"},
            "trigger_id": "1.2.3",
            "response_url": self.reply_to,
            "actions": [button],
        }
        return self.sign(urlencode({"payload": json.dumps(payload)}).encode(), at, key)

    @staticmethod
    def sign(body: bytes, at: datetime, key: str = KEY) -> SignedCall:
        stamp = str(int(at.timestamp()))
        base = b"v0:" + stamp.encode() + b":" + body
        signature = "v0=" + hmac.new(key.encode(), base, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": signature,
        }
        return headers, body


@dataclass
class TeamsService:
    """A message that mentions the outgoing webhook is written in the channel."""

    def notifier(self, here: Path) -> Teams:
        (here / "teams.token").write_text(KEY)
        url = "http://127.0.0.1:1/workflows/x"
        return Teams(url=url, security_token_file=str(here / "teams.token"), people=PEOPLE)

    def call(
        self, verb: str, notice: Notice, *, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY
    ) -> SignedCall:
        words = f"{verb} {notice.suggestion} {notice.digest.removeprefix('sha256:')[:16]}"
        return self.say(f"<at>flettner</at>&nbsp;{words}\n", user, at, key)

    @staticmethod
    def say(text: str, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY) -> SignedCall:
        message = {
            "type": "message",
            "id": "1485983408511",
            "timestamp": at.isoformat().replace("+00:00", "Z"),
            "serviceUrl": "https://smba.example/emea/",
            "channelId": "msteams",
            "from": {
                "id": "29:1XJKJMvc5GBtc2JwZq0oj8tHZmzrQgFmB25ATiQWA",
                "name": "A. L.",
                "aadObjectId": user,
            },
            "conversation": {
                "id": "19:253b1f341670408fb6fe51050b6e5ceb@thread.skype;messageid=1485983194839"
            },
            "text": text,
            "textFormat": "plain",
        }
        body = json.dumps(message).encode()
        mac = hmac.new(base64.b64decode(key), body, hashlib.sha256).digest()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Authorization": f"HMAC {base64.b64encode(mac).decode()}",
        }
        return headers, body


@dataclass
class MailService:
    """A button is pressed on the page to which a person's link leads."""

    def notifier(self, here: Path, server: str = "127.0.0.1", **options: Any) -> Mail:  # noqa: ANN401
        (here / "link.key").write_text(KEY)
        return Mail(
            **{
                "server": server,
                "sender": "flettner@example.org",
                "tls": "none",
                "people": {self.address(user): person for user, person in PEOPLE.items()},
                "link_key_file": str(here / "link.key"),
            }
            | options
        )

    @staticmethod
    def address(user: str) -> str:
        return f"{user}@example.org"

    def call(
        self, verb: str, notice: Notice, *, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY
    ) -> SignedCall:
        body = urlencode({"link": self.link(verb, notice, user=user, at=at, key=key)}).encode()
        return {"Content-Type": "application/x-www-form-urlencoded"}, body

    def link(
        self, verb: str, notice: Notice, *, user: str = "U0ALICE", at: datetime = NOON, key: str = KEY
    ) -> str:
        sent_s = str(int(at.timestamp()))
        signed = f"{verb} {self.address(user)} {notice.suggestion} {notice.digest} {sent_s}"
        named = f"flettner mail link to {notice.decisions}: {signed}".encode()
        return f"{signed} {hmac.new(key.encode(), named, hashlib.sha256).hexdigest()}"
