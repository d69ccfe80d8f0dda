"""Warnings about what anybody who reaches the port can cause hundreds of times a second."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

import structlog

LOG_EVERY_S: Final = 10.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SeldomLog:
    """Logs the first event at once, later ones at most once in LOG_EVERY_S, with their number."""

    event: str
    clock: Callable[[], float] = monotonic
    _since: int = 0  # the last line
    _logged_s: float = -inf

    def warn(self, **fields: object) -> None:
        self._since += 1
        if self.clock() - self._logged_s < LOG_EVERY_S:
            return
        log.warning(self.event, **fields, requests=self._since)
        self._since, self._logged_s = 0, self.clock()
