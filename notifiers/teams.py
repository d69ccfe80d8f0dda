"""A channel of Microsoft Teams, through a webhook of Workflows: an Adaptive Card.

https://support.microsoft.com/office/8ae491c7-0394-4861-ba59-055e33f75498: "Post to a channel when a webhook
request is received". Texts stand in RichTextBlocks, which know no Markdown: a server's words make no link.
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.notify.rules import Notice, OutgoingNotice
from notifiers.shared.secret_files import Addressed

COLOURS = {"info": "accent", "warning": "warning", "critical": "attention"}
OVER = "good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Teams(Addressed):
    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        del at
        colour = OVER if notice.ends else COLOURS[notice.severity]
        lines = [line(notice.title, weight="bolder", color=colour)]
        lines += [line(notice.text)] if notice.text else []
        when = f"{socket.gethostname()} · {notice.severity} · {notice.kind} · {notice.at:%Y-%m-%d %H:%M} UTC"
        lines += [line(when, isSubtle=True)]
        opens = {"type": "Action.OpenUrl", "title": "Open in trimtab", "url": notice.link}
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": lines,
            "actions": [opens] if notice.link else [],
        }
        attachment = {
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": card,
        }
        body = {"type": "message", "attachments": [attachment]}
        return OutgoingNotice(url=self.address(), body=json.dumps(body).encode())


def line(text: str, **style: Any) -> dict[str, Any]:  # noqa: ANN401 - of the schema
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


plugin = Teams
