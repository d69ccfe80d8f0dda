"""Who could not come in: told in the log and in the audit, in bulk, so that nobody can flood either."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from agent.domain.errors import JournalError

EVERY_S = 600.0  # the first attempt is told at once, what follows after this long
MOST = 20  # kinds of attempts that are told apart
OTHERS = "others"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class FailedAuthLog:
    note: Callable[[Mapping[str, int]], object]  # puts attempts by kind into the journal
    _attempts: Counter[str] = field(default_factory=Counter)
    _quiet: asyncio.TimerHandle | None = None  # until then nothing is told

    def came(self, address: str, why: str) -> None:
        """`why`: in words of ours; what was sent is never repeated."""
        kind = f"{address}, {why}"
        self._attempts[kind if kind in self._attempts or len(self._attempts) < MOST else OTHERS] += 1
        if self._quiet is None:
            self._tell()

    def close(self) -> None:
        """Tell what was not told yet."""
        for _ in range(2):
            if self._quiet is not None:
                self._quiet.cancel()
                self._tell()

    def _tell(self) -> None:
        self._quiet = None
        if not self._attempts:
            return
        attempts, self._attempts = dict(self._attempts), Counter()
        self._quiet = asyncio.get_running_loop().call_later(EVERY_S, self._tell)
        log.warning("auth.failed", attempts=attempts)
        try:
            self.note(attempts)
        except JournalError as error:
            log.warning("auth.failed_unrecorded", why=str(error))
