"""The records of a target, until they are joined into requests."""

import asyncio
from collections.abc import Mapping
from typing import Any

from flettner.agent.domain.errors import SensorError
from flettner.sensors.proxy_requests.access_log import AccessRecord, OpenRequests, parse_record
from flettner.sensors.proxy_requests.record_socket import Connection

NOT_INFERENCE = "/v1/models"

SourceCondition = tuple[bool, str] | None
"""Whether records arrive, and why; None: not known yet."""


class TargetInbox:
    """`paths`: prefixes of the paths that count."""

    def __init__(self, paths: tuple[str, ...], requests: OpenRequests) -> None:
        self.paths, self.requests = paths, requests
        self.active: set[Connection] = set()
        self.unreadable = 0
        self.unreadable_s = 0.0
        self.why = ""
        self.lost_s = float("-inf")
        self.why_lost = ""

    def state(self, *, is_known: bool) -> SourceCondition:
        """True if the Envoy of this host is connected; None if it never was."""
        if self.active:
            return True, "Envoy is connected"
        return (False, "Envoy has closed its connection") if is_known else None

    def lose(self, why: str) -> None:
        self.lost_s, self.why_lost = asyncio.get_running_loop().time(), why

    def add(self, log: str, fields: Mapping[Any, Any]) -> None:
        try:
            record = parse_record(log, fields)
        except SensorError as error:
            self.count_unreadable(error)
            return
        if self.counts(record):
            self.requests.add(record, asyncio.get_running_loop().time())

    def counts(self, record: AccessRecord) -> bool:
        return record.path.startswith(self.paths) and not record.path.startswith(NOT_INFERENCE)

    def count_unreadable(self, error: Exception) -> None:
        self.unreadable += 1
        self.unreadable_s = asyncio.get_running_loop().time()
        self.why = str(error)
