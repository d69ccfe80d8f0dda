"""Prometheus' Alertmanager: trouble is an alert that fires until its end is told, at most a day.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml: POST /api/v2/alerts. Alerts with the
same labels are one, so the labels come from the trouble alone, not from what is said of it.
"""

import json
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

from agent.notify.rules import Notice, OutgoingNotice
from notifiers.shared.secret_files import Addressed

LONGEST = timedelta(days=1)
SEVERITY = {"suggestion": "info", "rollout": "warning", "servers": "critical", "audit": "critical"}
"""Of each kind of trouble, the last part of a notice's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager(Addressed):
    """`url`: of Alertmanager itself, without /api/v2/alerts."""

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice | None:
        del at
        if not notice.key:
            return None
        trouble = notice.key.rpartition("/")[2]
        alert = {
            "labels": {
                "alertname": f"Trimtab{trouble.capitalize()}",
                "severity": SEVERITY.get(trouble, "warning"),
                "instance": socket.gethostname(),
                **({"target": notice.target} if notice.target else {}),
            },
            "annotations": {"summary": notice.title, "description": notice.text},
            "startsAt": notice.at.isoformat(),
            "endsAt": (notice.at if notice.ends else notice.at + LONGEST).isoformat(),
            **({"generatorURL": notice.link} if notice.link else {}),
        }
        root = self.address().rstrip("/")
        return OutgoingNotice(url=f"{root}/api/v2/alerts", body=json.dumps([alert]).encode())


plugin = Alertmanager
