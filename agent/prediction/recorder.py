"""Records the load of one target and the work of its servers, minute by minute, in bounded memory."""

import pickle
from array import array
from collections import deque
from dataclasses import dataclass, field, replace

from flettner.agent.domain.reading import EngineSample, Request, RequestSample
from flettner.agent.prediction.learned import TRACE_S
from flettner.agent.prediction.recording import Minute, Recording, RequestColumns, sum_samples
from flettner.agent.prediction.step_rows import LoggedSteps, row_of_scrape
from flettner.performance_model.work_windows import WorkWindow

MINUTE_S = 60.0
MINUTES = round(TRACE_S / MINUTE_S)
MOST_REQUESTS = 20_000  # of more in TRACE_S the latest are kept: 56 bytes each
MOST_ROWS = 120  # of a minute: two servers at a scrape a second
MOST_SAMPLES = 1000  # of a minute: 16 servers at a scrape a second
NO_ROWS = pickle.dumps([])
RAN = frozenset({"ok", "truncated", "aborted", "gave_up"})
"""Outcomes of requests that the engine worked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What the samples of a server tell. `budget`: its max_num_batched_tokens; None: not known.

    `engines`: of each replica.
    """

    budget: float | None
    same_law: bool  # the same step takes as long
    steady: bool  # its setting is the one in force
    engines: int = 1


@dataclass(slots=True)
class _Open:
    """The requests of one server at its last scrape; `debt`: arrivals counted too early."""

    sample: EngineSample
    debt: float = 0.0


@dataclass(slots=True)
class Recorder:
    """Deterministic: the same calls give the same recording."""

    requests: RequestColumns = field(default_factory=RequestColumns)
    _minutes: deque[Minute] = field(default_factory=lambda: deque(maxlen=MINUTES))
    _servers: dict[str, _Open] = field(default_factory=dict)
    _samples: deque[EngineSample] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    _arrivals_s: "array[float]" = field(default_factory=lambda: array("d"))
    _rows: list[WorkWindow] = field(default_factory=list)
    _logged: list[LoggedSteps] = field(default_factory=list)
    _begin_s: float | None = None
    _steady: bool = True

    def mark_change(self) -> None:
        """From now on another setting is in force: the present minute is not steady."""
        self._steady = False

    def add_requests(self, sample: RequestSample) -> None:
        ended_s = sample.at.timestamp()
        for request in sample.requests:
            if _ran(request):
                self.requests.add(request, ended_s)
        self.requests.keep_latest(ended_s - 2 * TRACE_S, MOST_REQUESTS)

    def add_scrape(self, sample: EngineSample, role: Role) -> None:
        at_s = sample.at.timestamp()
        if self._begin_s is None:
            self._begin_s = at_s - sample.interval_s
        self._steady &= role.steady
        self._samples.append(sample)
        previous = self._servers.get(sample.server)
        self._servers[sample.server] = opened = _Open(sample, previous.debt if previous else 0.0)
        if previous is None or not sample.interval_s:
            return
        row = None
        if role.same_law:
            row = row_of_scrape(previous.sample, sample, role.budget, role.engines)
        if row is not None and len(self._rows) < MOST_ROWS:
            self._rows.append(row)
        grown = sample.running + sample.waiting - previous.sample.running - previous.sample.waiting
        arrived = grown + sum(sample.finished.values()) - opened.debt
        opened.debt = max(0.0, -arrived)
        count = round(max(0.0, arrived))
        for place in range(count):  # evenly over the interval
            self._arrivals_s.append(at_s - sample.interval_s * (1 - (place + 0.5) / count))
        if len(self._arrivals_s) > MOST_REQUESTS:
            del self._arrivals_s[:-MOST_REQUESTS]

    def add_steps(self, steps: LoggedSteps) -> None:
        self._logged.append(steps)

    def forget_rows(self) -> None:
        """The law has changed: the work of steps before is no evidence any more."""
        self._rows, self._logged = [], []
        minutes = [
            replace(minute, histogram_rows=NO_ROWS, logged_rows=(), busy=()) for minute in self._minutes
        ]
        self._minutes = deque(minutes, maxlen=MINUTES)

    def close_minute(self, end_s: float) -> Recording:
        """End the present minute, and return the recording with it."""
        if self._begin_s is not None and end_s > self._begin_s:
            self._minutes.append(
                Minute(
                    begin_s=self._begin_s,
                    end_s=end_s,
                    sums=sum_samples(self._samples),
                    arrivals_s=self._arrivals_s,
                    histogram_rows=pickle.dumps(self._rows),
                    logged_rows=tuple(steps.rows for steps in self._logged),
                    busy=tuple(span for steps in self._logged for span in steps.busy),
                    steady=self._steady,
                )
            )
        self._begin_s, self._steady = end_s, True
        self._arrivals_s, self._rows, self._logged = array("d"), [], []
        self._samples.clear()
        return Recording(minutes=tuple(self._minutes), requests=self.requests)


def _ran(request: Request) -> bool:
    return request.outcome in RAN and request.duration_s < TRACE_S
