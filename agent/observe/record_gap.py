"""Whether the access logs of a gateway have all requests that a server answered. Pure.

A gateway drops a record that it could not send, without a message. vLLM counts its requests itself: where the
records are fewer, some were lost, or requests went to the server by another way.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from flettner.agent.domain.reading import EngineSample

SPAN: Final = timedelta(seconds=30)
LEAST: Final = 5  # missing requests
SHARE: Final = 0.2
"""Of vLLM's requests. A record comes up to 2 s after the count of vLLM: if the load doubles then, 2 of 34
are missing in the span. A smaller loss is not noticed."""


@dataclass(slots=True)
class RecordGap:
    """One server. Times are of the samples."""

    _answered: deque[tuple[datetime, float]] = field(default_factory=deque)  # by vLLM's own count
    _recorded: deque[tuple[datetime, float]] = field(default_factory=deque)

    def add_scrape(self, sample: EngineSample) -> None:
        """Counts requests over HTTP; where vLLM does not, those that the engine has finished."""
        counted = sample.answered or sample.finished
        _add(self._answered, sample.at, sum(counted.values()))

    def add_records(self, at: datetime, count: int) -> None:
        _add(self._recorded, at, count)

    def describe(self) -> str:
        """As in "12 of 40 requests in 30 s"; empty: nothing of note is missing."""
        answered = sum(count for _, count in self._answered)
        recorded = sum(count for _, count in self._recorded)
        if answered - recorded <= max(LEAST, SHARE * answered):
            return ""
        return f"{recorded:.0f} of {answered:.0f} requests in {SPAN.total_seconds():.0f} s"


def _add(counts: deque[tuple[datetime, float]], at: datetime, count: float) -> None:
    counts.append((at, count))
    while counts[0][0] <= at - SPAN:
        counts.popleft()
