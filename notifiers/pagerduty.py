"""PagerDuty, Events API v2: notices trigger and resolve incidents; other notices are not sent.

https://developer.pagerduty.com/docs/send-alert-event
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import is_url, read_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Pagerduty:
    key_file: str  # the integration key of the service
    url: str = "https://events.pagerduty.com/v2/enqueue"  # events.eu.pagerduty.com for EU accounts

    def __post_init__(self) -> None:
        if not is_url(self.url):
            raise ValueError("url must begin with https:// or http://, and have a host")

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice | None:
        del at
        if not notice.key:
            return None
        host = socket.gethostname()
        event: dict[str, Any] = {
            "routing_key": read_secret(self.key_file),
            "event_action": "resolve" if notice.ends else "trigger",
            "dedup_key": f"flettner/{host}/{notice.key}"[:255],
        }
        if not notice.ends:
            event["client"] = "flettner"
            event["payload"] = {
                "summary": notice.title,
                "source": host,
                "severity": notice.severity,
                "timestamp": notice.at.isoformat(),
                "component": notice.target,
                "class": notice.kind,
                "custom_details": {"why": notice.text},
            }
            event["links"] = [{"href": notice.link, "text": "Open in flettner"}] if notice.link else []
        return OutgoingNotice(url=self.url, body=json.dumps(event).encode())


plugin = Pagerduty
