"""Failed authentication attempts, logged and audited in aggregate so that a client cannot flood either."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from flettner.agent.domain.errors import JournalError

REPORT_EVERY_S = 600.0  # the first attempt is reported at once, later ones in reports this far apart
MAX_KINDS = 20  # kinds of attempts that a report counts separately
OTHER = "others"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class FailedAuthLog:
    journal: Callable[[Mapping[str, int]], object]  # writes the attempts by kind; raises JournalError
    _attempts: Counter[str] = field(default_factory=Counter)
    _next_report: asyncio.TimerHandle | None = None

    def record(self, address: str, why: str) -> None:
        """Count an attempt. `why` is our own text: the client's is never repeated."""
        kind = f"{address}, {why}"
        self._attempts[kind if kind in self._attempts or len(self._attempts) < MAX_KINDS else OTHER] += 1
        if self._next_report is None:
            self._report()

    def close(self) -> None:
        """Report the attempts counted since the last report."""
        for _ in range(2):
            if self._next_report is not None:
                self._next_report.cancel()
                self._report()

    def _report(self) -> None:
        self._next_report = None
        if not self._attempts:
            return
        attempts, self._attempts = dict(self._attempts), Counter()
        self._next_report = asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)
        log.warning("auth.failed", attempts=attempts)
        try:
            self.journal(attempts)
        except JournalError as error:
            log.warning("auth.failed_unrecorded", why=str(error))
