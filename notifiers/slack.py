"""A channel of Slack or Mattermost, through an incoming webhook.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and
https://developers.mattermost.com/integrate/reference/message-attachments/: both take `attachments`.
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime

from agent.notify.rules import Notice, OutgoingNotice
from notifiers.shared.secret_files import Addressed

COLOURS = {"info": "#2f81f7", "warning": "#d29922", "critical": "#cf222e"}
OVER = "#1a7f37"
_PLAIN = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "@": "@\u2060",
}  # no mention of @all is made of a server's words


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack(Addressed):
    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        del at
        title = plain(notice.title)
        attachment = {
            "color": OVER if notice.ends else COLOURS[notice.severity],
            "fallback": title,
            "title": title,
            "text": plain(notice.text),
            "mrkdwn_in": [],
            "footer": f"trimtab · {socket.gethostname()} · {notice.severity} · {notice.kind}",
            "ts": int(notice.at.timestamp()),
            **({"title_link": notice.link} if notice.link else {}),
        }
        body = {"attachments": [attachment]}
        return OutgoingNotice(url=self.address(), body=json.dumps(body).encode())


def plain(text: str) -> str:
    return "".join(_PLAIN.get(letter, letter) for letter in text)


plugin = Slack
