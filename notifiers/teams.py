"""A channel in Microsoft Teams, through a Workflows webhook: an Adaptive Card.

https://support.microsoft.com/office/8ae491c7-0394-4861-ba59-055e33f75498: "Post to a channel when a webhook
request is received". Texts are RichTextBlocks, which do not render Markdown, so a server's text makes no
link.
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import UrlReceiver

COLOURS = {"info": "accent", "warning": "warning", "critical": "attention"}
RESOLVED = "good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Teams(UrlReceiver):
    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        del at
        colour = RESOLVED if notice.ends else COLOURS[notice.severity]
        lines = [text_block(notice.title, weight="bolder", color=colour)]
        lines += [text_block(notice.text)] if notice.text else []
        footer = (
            f"{socket.gethostname()} · {notice.severity} · {notice.kind} · {notice.at:%Y-%m-%d %H:%M} UTC"
        )
        lines += [text_block(footer, isSubtle=True)]
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


def text_block(text: str, **style: Any) -> dict[str, Any]:  # noqa: ANN401 - any member of the schema
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


plugin = Teams
