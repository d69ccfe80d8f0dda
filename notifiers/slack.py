"""A channel in Slack or Mattermost, through an incoming webhook.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and
https://developers.mattermost.com/integrate/reference/message-attachments/: both take `attachments`.
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime

from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import UrlReceiver

COLOURS = {"info": "#2f81f7", "warning": "#d29922", "critical": "#cf222e"}
RESOLVED = "#1a7f37"
_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "@": "@\u2060",
}  # a server's text must not mention @all


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack(UrlReceiver):
    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        del at
        title = escape(notice.title)
        attachment = {
            "color": RESOLVED if notice.ends else COLOURS[notice.severity],
            "fallback": title,
            "title": title,
            "text": escape(notice.text),
            "mrkdwn_in": [],
            "footer": f"flettner · {socket.gethostname()} · {notice.severity} · {notice.kind}",
            "ts": int(notice.at.timestamp()),
            **({"title_link": notice.link} if notice.link else {}),
        }
        body = {"attachments": [attachment]}
        return OutgoingNotice(url=self.read_url(), body=json.dumps(body).encode())


def escape(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


plugin = Slack
