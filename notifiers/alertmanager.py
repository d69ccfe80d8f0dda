"""Prometheus Alertmanager: an incident is an alert that fires until it is resolved, at most a day.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml: POST /api/v2/alerts. Alerts with
equal labels are one alert, so the labels depend only on the incident, not on the text.
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import UrlReceiver

LONGEST = timedelta(days=1)
SEVERITY = {"suggestion": "info", "rollout": "warning", "servers": "critical", "audit": "critical"}
"""By kind of incident, the last part of a notice's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager(UrlReceiver):
    """`url`: Alertmanager's base URL, without /api/v2/alerts."""

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice | None:
        del at
        if not notice.key:
            return None
        incident = notice.key.rpartition("/")[2]
        alert = {
            "labels": {
                "alertname": f"Flettner{incident.capitalize()}",
                "severity": SEVERITY.get(incident, "warning"),
                "instance": socket.gethostname(),
                **({"target": notice.target} if notice.target else {}),
            },
            "annotations": {"summary": notice.title, "description": notice.text},
            "startsAt": notice.at.isoformat(),
            "endsAt": (notice.at if notice.ends else notice.at + LONGEST).isoformat(),
            **({"generatorURL": notice.link} if notice.link else {}),
        }
        root = self.read_url().rstrip("/")
        return OutgoingNotice(url=f"{root}/api/v2/alerts", body=json.dumps([alert]).encode())


plugin = Alertmanager
